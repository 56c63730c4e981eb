// The page around the canvas: header, legend, the view in the address, pointer and keys.

function totals() {
  const one = sides.length === 1, columns = one ? 1 : 3, stepped = state.step !== null;
  const th = (text, colSpan, className = "") =>
    Object.assign(make("th", text, className), { colSpan });
  const kinds = () => [th(sides[0].kind, 1, "part"),
    ...(one ? [] : [th(sides[1].kind, 1), th(D.change ? "change" : "error", 1)])];
  const cells = ([p, m]) => [make("td", brief(p), "part"),
    ...(one ? [] : [brief(m), signed(apart(p, m), brief) + percent(p, m)])];
  const own = { iteration: "iteration", "exposed communication": "exposed" };
  const here = (what) => sides.map((S) => S.steps[own[what]][S.steps.step.indexOf(S.now)]);
  const which = ascending(sides.map((S) => S.now)).length === 1 ? `step ${state.step}`
    : sides.map((S) => `step ${S.now} (${S.kind})`).join(", ");
  const lines = D.totals.map(({ what, seconds }) => [what, ...cells(seconds.map((s) => s === null ? NaN : s * 1e3)),
    ...(stepped && own[what] ? cells(here(what)) : [])]);
  const head = make("thead");
  const titles = [D.statistic, ...(stepped ? [which] : [])];
  head.append(...table([
    ["", ...titles.map((text) => th(text, columns, "part"))],
    ["", ...titles.flatMap(kinds)],
  ]).children);
  $("totals").replaceChildren(head, table(lines));
}
function dress() {
  const fewer = D.held < D.ranks, all = many(D.ranks, "rank");
  const size = fewer ? `${D.held.toLocaleString("en")} of ${all}` : all;
  $("title").textContent = [D.net.join(" on "), size].filter(Boolean).join(", ");
  document.title = `${$("title").textContent} – commsched`;
  const spans = sides.map((S) => `${many(S.name.length, "span")} ${S.kind}`).join(", ");
  const clock = D.clock ? `clocks agree within ${ms(D.clock / 1e6)}` : "";
  const held = fewer ? `the file has spans of ${many(D.held, "rank")}` : "";
  const known = [D.plan && `plan ${D.plan.slice(0, 12)}`, spans, held, clock].filter(Boolean);
  $("about").append(make("p", known.join("; ")), ...D.warnings.map((w) => make("p", w, "warning")));
  $("step").append(...steps.map((k) => {
    const seconds = last.steps.iteration[last.steps.step.indexOf(k)];
    const text = seconds === undefined || Number.isNaN(seconds) ? `${k}` : `${k}: ${brief(seconds)}`;
    return new Option(k === D.step ? `${text} *` : text, k);
  }), new Option("all", "all"));
  $("names").append(...D.names.slice(0, 2000).map((n) => new Option(n)));
  $("ranks").parentElement.hidden = ranks.length < 2;
  legend();
}
function legend() {
  $("legend").replaceChildren();
  const add = (text, background, border = "") => {
    const entry = make("span", text), mark = make("i");
    Object.assign(mark.style, { background, border });
    entry.prepend(mark); $("legend").append(entry);
  };
  const used = new Set();
  for (const S of sides) for (const L of S.lanes) {
    for (let i = L.from; i < L.to; i++) used.add(lookOf(S, L, i));
  }
  D.looks.forEach((k, i) => { if (used.has(i)) add(k.legend, k.fill); });
  const moving = D.streams.find((s) => s[2]), fill = moving ? D.looks[moving[1]].fill : C.lane;
  const waits = (S) => S.lanes.some((L) => moves(L) && most(S.waited.slice(L.from, L.to)) > 0);
  if (sides.some(waits)) add("waiting for a peer", mixed(fill, 0.35));
  const stripes = `repeating-linear-gradient(135deg, ${D.exposed} 0 1px, ${fill} 1px 4px)`;
  if (sides.some((S) => S.exposed.start.length)) {
    add("exposed: compute is idle", stripes, `1px solid ${D.exposed}`);
  }
  if (steps.length > 1) add("paler: other steps", styles[0][1]);
  add("a step begins", `linear-gradient(90deg, transparent 10px, ${C.strong} 10px 12px, transparent 12px)`);
  if (sides.some((S) => S.onPath.size)) {
    add("critical path", `linear-gradient(${C.lane} 8px, ${C.strong} 8px)`);
  }
}

// ---- the view in the address
let timer;
function remember() {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const f = state.focus, parts = { step: state.step ?? "all" };
    parts.ms = [state.a, state.b].map((v) => +v.toFixed(5)).join();
    if (ranks.length > 1) parts.ranks = $("ranks").value || "none";
    if (state.hits) parts.find = $("find").value;
    if (f) {
      Object.assign(parts, { focus: D.names[f.S.name[f.i]], rank: f.L.rank, side: f.S.kind });
    }
    const text = Object.entries(parts).map(([k, v]) => `${k}=${encodeURIComponent(v)}`).join("&");
    const plain = text.replaceAll("%2F", "/").replaceAll("%2C", ",");
    try { history.replaceState(null, "", `#${plain}`); } catch { /* not allowed everywhere */ }
  }, 400);
}
function recall() { // #step=7&ms=75,95&ranks=0-3&find=b3&focus=b3/exchange&rank=2&side=measured
  const p = new URLSearchParams(location.hash.slice(1)), at = p.get("step");
  $("find").value = p.get("find") || "";
  if (p.has("ranks")) unfold(p.get("ranks") === "none" ? "" : p.get("ranks"));
  choose(at === "all" ? null : at && steps.includes(+at) ? +at : D.step);
  const [a, b] = (p.get("ms") || "").split(",").map(Number);
  if (b > a) look(a, b);
  const S = sides.find((side) => side.kind === p.get("side")) || last;
  const name = D.names.indexOf(p.get("focus"));
  const rank = p.has("rank") ? +p.get("rank") : ascending(state.open)[0];
  const i = name < 0 ? undefined : S.at.get(key(rank, name, S.now ?? S.median));
  if (i !== undefined) focusOn({ S, i, L: laneOf(S, i) });
}

// ---- pointer
const place = (e) => {
  const frame = canvas.getBoundingClientRect();
  return [e.clientX - frame.left, e.clientY - frame.top];
};
canvas.addEventListener("wheel", (e) => {
  const [x] = place(e), unit = e.deltaMode ? 25 : 1;
  const along = Math.abs(e.deltaX) > Math.abs(e.deltaY);
  if (x < GUTTER && !e.ctrlKey) return; // over the names it scrolls
  e.preventDefault();
  const by = unit * (along ? e.deltaX : e.deltaY);
  if (along || e.shiftKey) pan(by / (W - GUTTER));
  else zoom(Math.exp(Math.max(-400, Math.min(400, by)) * 0.002), T(x));
}, { passive: false });
canvas.addEventListener("pointerdown", (e) => {
  if (e.button) return;
  const [x, y] = place(e);
  const range = x >= GUTTER && (e.shiftKey || state.measuring);
  state.drag = { x, y, range, a: state.a, b: state.b, top: scroll.scrollTop, far: false };
  try { canvas.setPointerCapture(e.pointerId); } catch { /* the pointer is gone already */ }
});
canvas.addEventListener("pointermove", (e) => {
  const [x, y] = place(e), d = state.drag;
  state.x = x;
  if (d && Math.hypot(x - d.x, y - d.y) > 4) d.far = true;
  if (d && d.far) {
    if (d.range) {
      state.range = [T(d.x), T(x)].sort((p, q) => p - q); panel(); draw(); return;
    }
    const by = (d.x - x) * (d.b - d.a) / (W - GUTTER);
    scroll.scrollTop = d.top + d.y - y; look(d.a + by, d.b + by);
  }
  state.hover = d && d.far ? null : find(x, y);
  const click = rowAt(y)?.folded || (x < GUTTER && ranks.length > 1 && rankAt(y) !== undefined);
  const resting = click ? "pointer" : state.hover ? "default" : "grab";
  canvas.style.cursor = d && d.far ? "grabbing" : resting;
  draw();
});
canvas.addEventListener("pointerup", (e) => {
  const [x, y] = place(e), d = state.drag, folded = rowAt(y)?.folded, rank = rankAt(y);
  const open = new Set(state.open);
  state.drag = null; draw();
  if (!d || d.far) return;
  if (d.range) { state.range = null; panel(); }
  if (folded) (e.shiftKey ? folded : folded.slice(0, 8)).forEach((r) => open.add(r));
  else if (x < GUTTER && ranks.length > 1) open.delete(rank);
  if (open.size !== state.open.size) reopen(open);
  else if (x >= GUTTER) focusOn(find(x, y));
});
canvas.addEventListener("pointercancel", () => { state.drag = null; });
canvas.addEventListener("pointerleave", () => { state.x = undefined; state.hover = null; draw(); });
canvas.addEventListener("dblclick", (e) => {
  const mark = find(...place(e));
  if (mark) focusOn(mark, true);
});

// ---- keys and buttons
const closer = () => zoom(0.6), farther = () => zoom(1 / 0.6);
const keys = {
  "+": closer, "=": closer, w: closer, "-": farther, _: farther, s: farther, 0: fit, Home: fit,
  a: () => pan(-0.2), d: () => pan(0.2), "[": () => leaf(-1), "]": () => leaf(1),
  ArrowLeft: () => step(-1, 0), ArrowRight: () => step(1, 0),
  ArrowUp: () => step(0, -1), ArrowDown: () => step(0, 1),
  Escape: () => { state.range = null; focusOn(null); },
  c: () => $("critical").click(), m: () => $("measure").click(), t: () => $("shade").click(), f: () => state.focus && focusOn(state.focus, true),
  "/": () => { $("find").focus(); $("find").select(); },
};
addEventListener("keydown", (e) => {
  const act = keys[e.key.length === 1 ? e.key.toLowerCase() : e.key];
  const typing = e.target.matches?.("input, select");
  if (e.key === "Escape" && typing) e.target.blur();
  if (!act || typing || e.ctrlKey || e.metaKey || e.altKey) return;
  e.preventDefault(); act();
});
$("find").addEventListener("input", () => { match(); draw(); });
$("find").addEventListener("keydown", (e) => { if (e.key === "Enter") jump(e.shiftKey ? -1 : 1); });
$("ranks").addEventListener("change", (e) => unfold(e.target.value));
$("step").addEventListener("change", (e) => {
  choose(e.target.value === "all" ? null : +e.target.value);
});
for (const [id, act] of Object.entries({ before: () => leaf(-1), after: () => leaf(1), in: closer,
  png: exportPng, svg: exportSvg, shade: () => shade(dark() ? "light" : "dark"),
  measure: () => {
    state.measuring = !state.measuring;
    $("measure").setAttribute("aria-pressed", state.measuring);
  },
  out: farther, fit, previous: () => jump(-1), next: () => jump(1) })) {
  $(id).addEventListener("click", act);
}
$("critical").addEventListener("change", draw);
$("summary").addEventListener("toggle", summarise);
scroll.addEventListener("scroll", draw);
addEventListener("resize", draw);
addEventListener("hashchange", recall);
dress(); layout(); recall();
