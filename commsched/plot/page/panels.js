// What the plan says of an operation, the range that is measured, the summary, and the export.

const launchOf = (S, i) => S.launches[D.names[S.name[i]].split("/")[0]];
const longer = (v) => signed(v, (x) => fixed(x, 3) + " ms");
const some = (words, most) => words.slice(0, most).join(", ")
  + (words.length > most ? ` and ${words.length - most} more` : "");
function planned(S, i, most) { // [what, words] of an operation's launch
  const launch = launchOf(S, i);
  if (!launch) return [];
  const found = [["method", launch.method]], plus = launch.method.indexOf("+");
  if (plus > 0) found.push(["codec", launch.method.slice(plus + 1)]);
  found.push(["tensors", `${launch.tensors.length}: ${some(launch.tensors, most)}`]);
  found.push(["elements", `${launch.numel.toLocaleString("en")} (${bytes(4 * launch.numel)} as float32)`]);
  if (launch.predicted_ms !== undefined) found.push(["alone it takes", ms(launch.predicted_ms)]);
  if (launch.runner_up) {
    const more = launch.margin_ms || 0, unsure = more < 0 ? ", but less surely" : "";
    const step = `a step would take ${longer(more)}${unsure}`;
    found.push(["runner-up", `${launch.runner_up}, ${ms(launch.runner_up_ms || 0)} alone; ${step}`]);
  }
  if (launch.opposite) {
    const more = longer(launch.opposite_margin_ms || 0);
    found.push(["otherwise", `${launch.opposite}: a step would take ${more}`]);
  }
  return found;
}
function plain(lines) {
  const grid = make("table", "", "plain");
  grid.append(table(lines.map(([what, words]) => [make("th", what), words])));
  return grid;
}

// ---- the panel under the timeline: the operation in focus, and the range
function panel() {
  const f = state.focus, parts = state.range ? measured(...state.range) : [];
  if (f) {
    const lines = planned(f.S, f.i, 12), critical = f.S.onPath.get(f.S.step[f.i])?.has(f.i);
    const title = D.names[f.S.name[f.i]] + (critical ? ": on the critical path" : "");
    if (lines.length || critical) parts.push(make("b", title), plain(lines));
  }
  $("panel").hidden = !parts.length;
  $("panel").replaceChildren(...parts);
}
function used(S, L, from, to) { // ms that a lane is busy between two moments
  let sum = 0, until = from;
  for (let i = bound(S.reach, L.from, L.to, from); i < L.to && S.start[i] < to; i++) {
    sum += Math.max(0, Math.min(S.end[i], to) - Math.max(S.start[i], until));
    until = Math.max(until, Math.min(S.end[i], to));
  }
  return sum;
}
function busy(S, lanes, from, to) { // lines of a table: each stream's share, a mean over ranks
  const sums = new Map(), ranks = new Set(lanes.map((L) => L.rank)).size;
  for (const L of lanes) sums.set(L.stream, (sums.get(L.stream) || 0) + used(S, L, from, to));
  return [...sums].sort((a, b) => a[0] - b[0]).map(([stream, sum]) => [D.streams[stream][0],
    `busy ${ms(sum / ranks)} (${fixed(100 * sum / ranks / (to - from), 1)} %)`]);
}
function measured(a, b) {
  const parts = [make("b", `${ms(b - a)}, from ${ms(a)} to ${ms(b)}`)];
  for (const S of sides) {
    const lanes = rows.filter((r) => r.S === S).map((r) => r.lane);
    if (!lanes.length) continue;
    parts.push(make("p", `${S.kind}, a mean over the unfolded ranks`));
    parts.push(plain(busy(S, lanes, a + S.origin, b + S.origin)));
  }
  return parts;
}

// ---- the summary of the step on show
function summarise() {
  if ($("summary").open) $("facts").replaceChildren(...sides.flatMap(summary));
}
function summary(S) {
  const k = S.steps.step.indexOf(S.now), ranks = S.ofRank.size, bare = new Map();
  const [from, to] = k < 0 ? span(S) : [S.steps.start[k], S.steps.start[k + 1] ?? S.steps.end[k]];
  for (const L of S.lanes) if (moves(L)) {
    for (let i = bound(S.reach, L.from, L.to, from); i < L.to && S.start[i] < to; i++) {
      if (now(S, i)) bare.set(S.name[i], (bare.get(S.name[i]) || 0) + uncovered({ S, L, i }));
    }
  }
  const top = [...bare].filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1]).slice(0, 8);
  const which = S.now === null ? "all steps" : `step ${S.now}`;
  return [
    make("b", `${S.kind}, ${which}, ${ms(to - from)}, a mean over ${many(ranks, "rank")}`),
    make("p", top.length ? "most exposed operations" : "no communication is exposed"),
    plain(top.map(([name, sum]) => {
      const launch = S.launches[D.names[name].split("/")[0]];
      return [D.names[name], ms(sum / ranks) + (launch ? `, ${launch.method}` : "")];
    })),
    make("p", "streams"), plain(busy(S, S.lanes, from, to)), ...criticalFacts(S, k),
  ];
}
function criticalFacts(S, k) { // from when the step has begun on all ranks to the same of the next
  const from = S.steps.begun[k], to = S.steps.begun[k + 1] ?? S.steps.end[k];
  const path = S.onPath.get(S.now), sums = new Map(), on = new Set();
  if (!path) return S.now === null ? [] : [make("p", "critical path: not in this page")];
  for (const i of path) {
    const L = laneOf(S, i), part = Math.min(S.end[i], to) - Math.max(S.start[i], from);
    sums.set(L.stream, (sums.get(L.stream) || 0) + Math.max(0, part));
    on.add(L.rank);
  }
  const where = `rank${on.size > 1 ? "s" : ""} ${ranges([...on])}`;
  return [make("p", `critical path: ${many(path.size, "operation")} on ${where}`),
    plain([...sums].sort((a, b) => b[1] - a[1]).map(([k, sum]) => [D.streams[k][0], ms(sum)]))];
}

// ---- export: what is in sight, as PNG or SVG
function save(blob, kind) {
  const link = Object.assign(make("a"), { download: `timeline.${kind}` });
  link.href = URL.createObjectURL(blob); link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
const exportPng = () => canvas.toBlob((blob) => save(blob, "png"));
const exportSvg = () => save(new Blob([asSvg()], { type: "image/svg+xml" }), "svg");
const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
class Recorder { // the part of a canvas that this page draws with, as SVG
  constructor() { Object.assign(this, { out: [], depth: [], clips: 0, globalAlpha: 1 }); }
  setTransform() {}
  createPattern() { return hatch; }
  measureText(text) { screen.font = this.font; return screen.measureText(text); }
  save() { this.depth.push(0); }
  restore() { this.out.push("</g>".repeat(this.depth.pop())); }
  beginPath() {}
  rect(...frame) { this.frame = frame; }
  clip() {
    const id = `c${this.clips++}`;
    this.out.push(`<clipPath id="${id}">`); this.put(...this.frame, "");
    this.out.push(`</clipPath><g clip-path="url(#${id})">`);
    this.depth[this.depth.length - 1]++;
  }
  put(x, y, w, h, look) {
    const [a, b, c, d] = [x, y, Math.max(w, 0), Math.max(h, 0)].map((v) => +v.toFixed(2));
    this.out.push(`<rect x="${a}" y="${b}" width="${c}" height="${d}" ${look}/>`);
  }
  fillRect(x, y, w, h) {
    const fill = this.fillStyle === hatch ? "url(#hatch)" : this.fillStyle;
    this.put(x, y, w, h, `fill="${fill}" opacity="${this.globalAlpha}"`);
  }
  strokeRect(x, y, w, h) {
    this.put(x, y, w, h, `fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}"`);
  }
  fillText(text, x, y) {
    const anchor = { left: "start", center: "middle", right: "end" }[this.textAlign];
    this.out.push(`<text x="${x.toFixed(2)}" y="${y.toFixed(2)}" fill="${this.fillStyle}"`
      + ` text-anchor="${anchor}" dominant-baseline="central" style="font:${escaped(this.font)}">`
      + `${escaped(text)}</text>`);
  }
}
function asSvg() {
  const made = new Recorder(), lines = "M-1,7 7,-1 M-7,7 1,-1 M5,7 13,-1";
  g = made;
  try { paint(); } finally { g = screen; paint(); }
  const head = `xmlns="http:${"//"}www.w3.org/2000/svg" width="${W}" height="${H}" viewBox="0 0 ${W} ${H}"`;
  return `<svg ${head}><title>${escaped($("title").textContent)}</title>`
    + `<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse">`
    + `<path d="${lines}" stroke="${D.exposed}" stroke-width="1.1"/></pattern></defs>`
    + `${made.out.join("\n")}</svg>\n`;
}

// ---- light or dark
function shade(next) { // "light", "dark", or "" as the system says
  const root = document.documentElement.classList;
  root.remove("light", "dark"); if (next) root.add(next);
  dye(); legend(); draw();
}
const system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => {
  const root = document.documentElement.classList;
  return root.contains("dark") || (system.matches && !root.contains("light"));
};
system.addEventListener("change", () => shade(""));
