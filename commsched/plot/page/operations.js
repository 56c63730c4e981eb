// Single operations: what is under the pointer, its other side, its description, the search.

// an operation is the same name and step, on all ranks and both sides
const counterpart = (S, mark) =>
  (S !== mark.S && now(mark.S, mark.i) && S.now !== null ? S.now : mark.S.step[mark.i]);
const alike = (mark, S, i) =>
  S.name[i] === mark.S.name[mark.i] && S.step[i] === counterpart(S, mark);
const laneOf = (S, i) => S.lanes.find((L) => i < L.to);

function on(S, mark) { // the same operation of the same rank on a side
  if (S === mark.S) return mark;
  const i = S.at.get(key(mark.L.rank, mark.S.name[mark.i], counterpart(S, mark)));
  return i === undefined ? null : { S, i, L: laneOf(S, i) };
}
function uncovered({ S, L, i }) { // ms of it exposed
  const { start, end } = S.exposed;
  let sum = 0;
  for (let k = bound(end, L.bare, L.bareTo, S.start[i]); k < L.bareTo; k++) {
    if (start[k] >= S.end[i]) break;
    sum += Math.min(end[k], S.end[i]) - Math.max(start[k], S.start[i]);
  }
  return sum;
}
function make(tag, text = "", className = "") {
  return Object.assign(document.createElement(tag), { textContent: text, className });
}
function table(lines) { // text only, so that no name becomes markup
  const body = make("tbody");
  for (const line of lines) {
    const cells = line.map((cell) => (cell instanceof Node ? cell : make("td", cell)));
    body.appendChild(make("tr")).append(...cells);
  }
  return body;
}
function facts(mark, both) {
  const line = (what, f, word = ms, ratio = () => "") => {
    const [p, m] = both.map((k) => (k ? f(k) : NaN)), off = apart(p, m);
    const values = both.map((k) => (k ? word(f(k)) : "–"));
    return [what, ...values, isNaN(off) ? "" : signed(off, word) + ratio(p, m)];
  };
  const kinds = [...sides.map((S) => S.kind), ...(sides.length > 1 ? ["difference"] : [])];
  const lines = [["", ...kinds].map((text) => make("th", text))];
  lines.push(line("duration", (k) => k.S.end[k.i] - k.S.start[k.i], ms, percent));
  if (moves(mark.L)) {
    lines.push(line("waiting", (k) => k.S.waited[k.i]), line("exposed", uncovered));
  }
  lines.push(line("start", (k) => k.S.start[k.i] - k.S.origin));
  if (both.some((k) => k && (moves(k.L) || k.S.nbytes[k.i]))) {
    lines.push(line("bytes", (k) => k.S.nbytes[k.i], bytes));
  }
  return lines;
}
function describe() {
  const mark = state.hover || state.focus;
  const row = mark && rows.find((r) => r.S === mark.S && r.lane === mark.L);
  if (!row || (state.drag && state.drag.far)) { tip.hidden = true; return; }
  const { S, L, i } = mark, top = row.y + AXIS - scroll.scrollTop;
  const x0 = X(S.start[i] - S.origin), x1 = X(S.end[i] - S.origin);
  tip.hidden = top < AXIS - LANE || top > H || x1 < GUTTER || x0 > W;
  if (tip.hidden) return;
  const both = sides.map((side) => on(side, mark)), grid = make("table");
  grid.append(table(facts(mark, both)));
  const where = `rank ${L.rank}, ${D.streams[L.stream][0]}, step ${S.step[i]}, ${S.kind}`;
  const kind = D.looks[lookOf(S, L, i)].legend;
  tip.replaceChildren(make("b", D.names[S.name[i]]), make("p", `${kind}; ${where}`), grid);
  const known = state.hover ? planned(S, i, 3) : []; // of the focus they are in the panel
  if (known.length) tip.append(plain(known));
  both.forEach((k, n) => {
    if (!k) tip.append(make("p", `not in the ${sides[n].kind} timeline`));
  });
  const clock = D.clock / 1e6;
  if (both.some((k) => k && k.S.end[k.i] - k.S.start[k.i] < clock)) {
    tip.append(make("p", `shorter than the ${ms(clock)} within which the clocks agree`));
  }
  beside(state.hover ? state.x + 14 : Math.max(x0, GUTTER), top);
}
function beside(x, top) { // below the lane, or above it where there is no room
  const frame = canvas.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const below = frame.top + top + LANE + 8, above = frame.top + top - size.height - 8;
  const fits = below + size.height < innerHeight || above < 0;
  tip.style.left = Math.max(4, Math.min(frame.left + x, innerWidth - size.width - 8)) + "px";
  tip.style.top = Math.max(4, fits ? below : above) + "px";
}
function say() { // to who listens instead of looking
  const cells = (e) => [...(e.cells || [e])].map((cell) => cell.textContent).join(" ");
  $("said").textContent = [...tip.querySelectorAll("b, p, tr")].map(cells).join("; ");
}

// ---- under the pointer, and from the keyboard
function rowAt(y) {
  const at = y - AXIS + scroll.scrollTop;
  return y < AXIS ? undefined : rows.find((r) => at >= r.y - 1 && at < r.y + r.h + 1);
}
function rankAt(y) {
  const at = y - AXIS + scroll.scrollTop;
  return y < AXIS ? undefined : heads.find((k) => at >= k.y && at < k.y + k.h)?.rank;
}
function find(x, y) { // within 3 px
  const row = rowAt(y);
  if (!row || !row.lane || x < GUTTER) return null;
  const { S, lane: L } = row, t = T(x) + S.origin, slack = T(x + 3) - T(x);
  let found = null, nearest = Infinity;
  for (let i = bound(S.reach, L.from, L.to, t - slack); i < L.to; i++) {
    if (S.start[i] > t + slack) break;
    const away = Math.max(S.start[i] - t, t - S.end[i], 0);
    if (away < nearest && away <= slack) { found = { S, L, i }; nearest = away; }
    if (!nearest) break;
  }
  return found;
}
function focusOn(mark, close = false) {
  state.focus = mark; state.hover = null; panel(); draw();
  if (!mark) { $("said").textContent = ""; return; }
  const { S, L, i } = mark, a = S.start[i] - S.origin, b = S.end[i] - S.origin;
  if (!state.open.has(L.rank)) reopen(new Set([...state.open, L.rank]));
  resize();
  const room = close ? Math.max((b - a) * 4, 50 * LEAST) : state.b - state.a;
  const middle = (a + b) / 2;
  if (close || a < state.a || b > state.b) look(middle - room / 2, middle + room / 2);
  const row = rows.find((r) => r.lane === L), top = row.y - scroll.scrollTop;
  if (top < 0 || top + LANE > H - AXIS) scroll.scrollTop = row.y - (H - AXIS) / 2;
  requestAnimationFrame(() => requestAnimationFrame(say));
}
function step(along, across) { // to a neighbour of the operation in focus
  const lanes = rows.filter((r) => r.lane), at = (row, t) => {
    const { S, lane: L } = row, i = bound(S.reach, L.from, L.to, t + S.origin);
    return { S, L, i: Math.min(i, L.to - 1) };
  };
  if (!lanes.length) return;
  if (!state.focus) {
    focusOn(at(lanes.find((r) => r.y >= scroll.scrollTop) || lanes[0], Math.max(state.a, 0)));
    return;
  }
  const { S, L, i } = state.focus, next = Math.min(Math.max(i + along, L.from), L.to - 1);
  const row = lanes[lanes.findIndex((r) => r.lane === L) + across];
  if (along) focusOn({ S, L, i: next });
  else if (row) focusOn(at(row, (S.start[i] + S.end[i]) / 2 - S.origin));
}

// ---- search
function match() {
  const text = $("find").value.trim().toLowerCase(), names = D.names.map((n) => n.toLowerCase());
  const exact = names.includes(text); // b1/exchange is not also sub1/exchange
  state.hits = text ? names.map((n) => (exact ? n === text : n.includes(text))) : null;
  state.matches = [];
  for (const { S, lane: L } of text ? rows.filter((r) => r.lane) : []) {
    for (let i = L.from; i < L.to; i++) {
      if (state.hits[S.name[i]] && now(S, i)) state.matches.push({ S, L, i });
    }
  }
  const count = text ? state.hits.filter(Boolean).length : 0;
  const found = `${many(count, "operation")}, ${many(state.matches.length, "span")}`;
  $("found").textContent = text ? (count ? found : "no such operation") : "";
}
function jump(way) {
  const list = state.matches, f = state.focus;
  const at = f ? list.findIndex((m) => m.S === f.S && m.i === f.i) : -1;
  const next = at < 0 ? (way > 0 ? 0 : list.length - 1) : (at + way + list.length) % list.length;
  if (list.length) focusOn(list[next]);
}
