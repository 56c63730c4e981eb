// Draw what is in sight: names on the left, times above, spans in lanes.

const AXIS = 42, LANE = 18; // px
let GUTTER = 206;
const LEAST = 1e-4; // ms, the closest look
const FONT = '"Liberation Sans", sans-serif';
const canvas = $("canvas"), screen = canvas.getContext("2d"), scroll = $("scroll"), tip = $("tip");
let g = screen, pending = false, W = 0, H = 0, ratio = 1, hatch;

const C = {}; // colours of the page, from its style sheet
let styles;
const channels = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
const mixed = (hex, share) => "#" + channels(hex).map((part, k) =>
  Math.round(part * share + channels(C.lane)[k] * (1 - share)).toString(16).padStart(2, "0")).join("");
function dye() { // light or dark
  const known = getComputedStyle(document.documentElement);
  for (const name of ["back", "lane", "grid", "line", "text", "strong", "soft", "fold", "wait"]) {
    C[name] = known.getPropertyValue(`--${name}`).trim();
  }
  styles = D.looks.map((k) => [k.fill, mixed(k.fill, 0.4), mixed(k.fill, 0.13)]);
}
dye();
const X = (t) => GUTTER + (t - state.a) * (W - GUTTER) / (state.b - state.a);
const T = (x) => state.a + (x - GUTTER) * (state.b - state.a) / (W - GUTTER);
const widths = new Map();
function width(text) {
  if (!widths.has(text)) {
    g.font = `11px ${FONT}`;
    widths.set(text, g.measureText(text).width);
  }
  return widths.get(text);
}
function write(text, x, y, { size = 11, fill = C.text, align = "left", weight = "normal" } = {}) {
  const font = `${weight} ${size}px ${FONT}`;
  Object.assign(g, { font, textAlign: align, textBaseline: "middle", fillStyle: fill });
  g.fillText(text, x, y);
}
function box(fill, x, y, w, h) { g.fillStyle = fill; g.fillRect(x, y, w, h); }
function inside(x, y, w, h, act) {
  g.save(); g.beginPath(); g.rect(x, y, w, h); g.clip(); act(); g.restore();
}

function draw() {
  if (!pending) { pending = true; requestAnimationFrame(paint); }
}
function paint() {
  const begun = performance.now(), count = { spans: 0, labels: 0, critical: 0 }, frames = [];
  pending = false; resize();
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  box(C.back, 0, 0, W, H);
  const dy = AXIS - scroll.scrollTop, wide = W - GUTTER;
  const seen = (r) => r.y + r.h + dy > AXIS && r.y + dy < H, visible = rows.filter(seen);
  const ticks = axis();
  inside(0, AXIS, W, H - AXIS, () => {
    for (const row of visible) {
      const y = row.y + dy;
      if (row.folded) drawFolded(row, y);
      else inside(GUTTER, y, wide, row.h, () => drawLane(row, y, ticks, frames, count));
    }
    drawNames(dy, seen);
  });
  inside(GUTTER, AXIS, wide, H - AXIS, () => {
    for (const [x, y, w, h, strong] of frames) {
      g.lineWidth = strong ? 2.5 : 1.5; g.strokeStyle = strong ? C.strong : C.text;
      g.strokeRect(x, y, Math.max(w, 2), h);
    }
  });
  drawRange(); drawCursor(); describe(); remember();
  Object.assign(hook, count, { rows: visible.length, a: state.a, b: state.b,
    milliseconds: (performance.now() - begun).toFixed(1) });
}
function resize() {
  ratio = devicePixelRatio || 1; H = scroll.clientHeight;
  $("spacer").style.height = Math.max(state.height - H, 0) + "px";
  W = scroll.clientWidth; // without the scroll bar
  GUTTER = W < 640 ? 112 : 206;
  const size = { width: Math.round(W * ratio), height: Math.round(H * ratio) };
  if (hatch && canvas.width === size.width && canvas.height === size.height) return;
  Object.assign(canvas, size);
  const tile = Object.assign(document.createElement("canvas"), { width: 6, height: 6 });
  const c = tile.getContext("2d");
  Object.assign(c, { strokeStyle: D.exposed, lineWidth: 1.1 }); c.beginPath();
  for (const k of [-6, 0, 6]) { c.moveTo(k - 1, 7); c.lineTo(k + 7, -1); }
  c.stroke(); hatch = g.createPattern(tile, "repeat");
}
function axis() { // and return where its ticks are
  const ticks = [], rough = (state.b - state.a) * 95 / (W - GUTTER);
  const power = 10 ** Math.floor(Math.log10(rough));
  const apart = [1, 2, 5, 10].map((k) => k * power).find((v) => v >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(apart) + 1e-9));
  for (let k = Math.ceil(state.a / apart); k * apart <= state.b; k++) {
    const x = X(k * apart), room = width(fixed(k * apart, digits)) / 2 + 3;
    ticks.push(x);
    if (x < GUTTER + room - 8 || x > W - room) continue;
    write(k ? fixed(k * apart, digits) : "0", x, 30, { align: "center" });
  }
  const since = state.step === null ? "the run" : `step ${state.step}`;
  write(W < 640 ? "ms" : `ms since ${since} began`, GUTTER - 14, 30, { fill: C.soft, align: "right" });
  nameSteps();
  box(C.line, GUTTER, AXIS - 1, W - GUTTER, 1);
  return ticks;
}
function nameSteps() {
  let free = GUTTER;
  last.steps.start.forEach((t, k) => {
    const text = `step ${last.steps.step[k]}`, x = Math.max(X(t - last.origin), GUTTER + 2);
    const next = last.steps.start[k + 1] ?? Infinity, room = width(text) + 10;
    if (x < free || x + room > W || X(next - last.origin) < x + room) return;
    const here = last.now === null || last.steps.step[k] === last.now;
    write(text, x, 11, here ? { fill: C.strong, weight: "bold" } : { fill: C.soft });
    free = x + room;
  });
}
function drawLane(row, y, ticks, frames, count) {
  const { S, lane: L, h } = row, t0 = state.a + S.origin, t1 = state.b + S.origin, wide = [];
  const mark = state.hover || state.focus, rare = state.matches.length < 12 * rows.length;
  box(C.lane, GUTTER, y, W - GUTTER, h);
  ticks.forEach((x) => box(C.grid, x, y, 1, h));
  const path = S.onPath.get(S.now === null ? S.median : S.now), marked = [];
  let pixel = -1, best = 0, colour = ""; // of the spans in one pixel the longest is drawn
  const flush = () => { if (pixel >= 0) box(colour, pixel, y, 1, h); pixel = -1; };
  for (let i = bound(S.reach, L.from, L.to, t0); i < L.to && S.start[i] <= t1; i++) {
    const x0 = X(S.start[i] - S.origin), w = X(S.end[i] - S.origin) - x0, here = now(S, i);
    const k = lookOf(S, L, i), hit = state.hits && state.hits[S.name[i]];
    const fill = styles[k][state.hits && !hit ? 2 : here ? 0 : 1];
    count.spans++;
    if (path && path.has(i)) marked.push([x0, w]);
    if (mark && alike(mark, S, i)) frames.push([x0, y, w, h, mark.S === S && mark.i === i]);
    else if (hit && here && (rare || w > 8)) frames.push([x0, y, w, h, false]);
    if (w >= 1) {
      flush();
      const l = Math.max(x0, GUTTER - 2), r = Math.min(x0 + w, W + 2);
      box(fill, l, y, r - l - (w > 3 ? 0.8 : 0), h);
      const until = Math.min(X(S.start[i] + S.waited[i] - S.origin), r);
      if (moves(L) && until > l) box(C.wait, l, y, until - l, h);
      if (r - l > 10) wide.push({ i, l: Math.max(l, GUTTER), r: Math.min(r, W), k, fill });
    } else {
      const p = Math.floor(x0), weight = w + (hit ? 2 : 0);
      if (p !== pixel) { flush(); pixel = p; best = -1; }
      if (weight > best) { best = weight; colour = fill; }
    }
  }
  flush();
  count.labels += drawLabels(row, y, wide, drawExposed(row, y, t0, t1));
  if ($("critical").checked) {
    for (const [x, w] of marked) box(C.strong, x, y + h - 3, Math.max(w - 0.5, 1.5), 3);
    count.critical += marked.length;
  }
  for (const t of S.steps.start) { // where a step begins
    const x = X(t - S.origin);
    if (x >= GUTTER && x <= W) box(C.strong, x - 0.75, y - 1, 1.5, h + 2);
  }
}
function drawExposed({ S, lane: L, h }, y, t0, t1) { // and return where, in px
  const found = [], B = S.exposed;
  Object.assign(g, { strokeStyle: D.exposed, lineWidth: 1.5 });
  for (let k = bound(B.end, L.bare, L.bareTo, t0); k < L.bareTo && B.start[k] <= t1; k++) {
    const a = Math.max(X(B.start[k] - S.origin), GUTTER - 3);
    const b = Math.min(X(B.end[k] - S.origin), W + 3), w = b - a;
    if (found.length && b < found.at(-1)[1] + 0.5) continue;
    if (w < 3) box(D.exposed, a, y, Math.max(w, 1.2), h);
    else { box(hatch, a, y, w, h); g.strokeRect(a + 0.7, y + 0.7, w - 1.4, h - 1.4); }
    found.push([a, b]);
  }
  return found;
}
function drawLabels({ S, h }, y, wide, exposed) { // and return how many
  let taken = -1, count = 0; // where spans overlap, only the first is named
  for (const { i, l, r, k, fill } of wide) {
    const name = D.names[S.name[i]], short = D.short[name], room = r - l - 5;
    const text = width(name) <= room ? name : short && width(short) <= room ? short : null;
    if (l < taken - 0.01 || text === null) continue;
    const half = width(text) / 2, x = (l + r) / 2;
    if (exposed.some(([a, b]) => a < x + half && b > x - half)) { // not on a hatch
      box(fill, x - half - 2, y + 2, 2 * half + 4, h - 4);
    }
    const paint = [D.looks[k].text, C.text, C.soft][styles[k].indexOf(fill)];
    write(text, x, y + h / 2 + 0.5, { fill: paint, align: "center" });
    taken = r; count++;
  }
  return count;
}
function drawFolded(row, y) {
  const n = row.folded.length, which = ranges(row.folded), middle = y + row.h / 2;
  box(C.fold, 8, y, W - 16, row.h);
  const text = n === 1 ? `▸ rank ${which}` : `▸ ranks ${which} (${n} folded)`;
  write(text, 14, middle, { size: 12, weight: "bold" });
  const more = n > 8 ? "click for the first 8 of them, with Shift for all" : "click to unfold";
  if (W >= 640) write(more, Math.max(GUTTER + 8, 40 + 1.2 * width(text)), middle, { fill: C.soft });
}
function fitted(text, room) {
  while (text.length > 2 && width(text) > room) text = text.slice(0, -2) + "…";
  return text;
}
function drawNames(dy, seen) {
  const right = { align: "right" };
  for (const row of rows) if (row.lane && seen(row)) {
    write(fitted(D.streams[row.lane.stream][0], 62), GUTTER - 8, row.y + dy + row.h / 2, right);
  }
  const narrow = GUTTER < 200;
  for (const k of sides.length > 1 ? groups : []) if (seen(k)) {
    write(narrow ? k.text[0] : k.text, GUTTER - (narrow ? 66 : 76), k.y + dy + k.h / 2, right);
  }
  for (const k of heads) if (seen(k)) {
    const role = narrow ? "" : D.open[k.rank], y = k.y + dy + k.h / 2 - (role ? 7 : 0);
    if (ranks.length > 1) write("▾", 7, y, { size: 10, fill: C.soft });
    write(narrow ? `${k.rank}` : `rank ${k.rank}`, 17, y, { size: 12.5, fill: C.strong, weight: "bold" });
    if (role) write(role, 17, y + 15, { fill: C.soft });
  }
}
function drawRange() {
  if (!state.range) return;
  const [a, b] = state.range, l = Math.max(X(a), GUTTER), r = Math.min(X(b), W);
  if (r < l) return;
  g.globalAlpha = 0.16; box(C.strong, l, AXIS, r - l, H - AXIS); g.globalAlpha = 1;
  for (const x of [l, r]) box(C.strong, x - 0.75, AXIS, 1.5, H - AXIS);
  const text = ms(b - a), half = width(text) / 2 + 5;
  const x = Math.min(Math.max((l + r) / 2, GUTTER + half), W - half);
  box(C.strong, x - half, AXIS, 2 * half, 17);
  write(text, x, AXIS + 9, { fill: C.back, align: "center" });
}
function drawCursor() {
  if (!(state.x >= GUTTER)) return;
  const text = ms(T(state.x)), half = width(text) / 2 + 5;
  const x = Math.min(Math.max(state.x, GUTTER + half), W - half);
  box(C.soft, state.x, AXIS, 1, H - AXIS);
  box(C.text, x - half, 21, 2 * half, 18);
  write(text, x, 30.5, { fill: C.back, align: "center" });
}
