// The data, numbers in words, steps and rows; all times are milliseconds.

const hook = document.documentElement.dataset; // what is drawn, for tests
addEventListener("error", (e) => { hook.error = e.message; });
const $ = (id) => document.getElementById(id);
const D = JSON.parse($("data").textContent), sides = D.sides, last = sides.at(-1);
const state = {
  step: D.step, a: 0, b: 1, // the step on show, or null for all; the times at both edges
  open: new Set(Object.keys(D.open).map(Number)), // unfolded ranks
  focus: null, hover: null, // {S: side, L: lane, i: span}
  hits: null, matches: [], // of the search: by name whether it is one; spans
  range: null, measuring: false, // ms from the step's start, chosen by dragging
  drag: null, x: undefined, height: 0, // px
};

const least = (column) => column.reduce((a, b) => Math.min(a, b), Infinity);
const most = (column) => column.reduce((a, b) => Math.max(a, b), -Infinity);
const RANKS = 1 + Math.max(...sides.map((S) => most(S.lanes.rank))); // of the larger side
const key = (rank, name, step) => (step * D.names.length + name) * RANKS + rank;

function decode(S) {
  const milliseconds = (v) => v === null ? NaN : v / 1e6, floats = (n) => new Float64Array(n), L = S.lanes;
  const n = S.name.length, m = S.exposed.start.length;
  const start = floats(n), end = floats(n), reach = floats(n);
  const bare = { start: floats(m), end: floats(m) }; // exposed communication
  S.lanes = []; S.ofRank = new Map(); S.at = new Map();
  for (let k = 0, i = 0, e = 0; k < L.rank.length; k++) {
    const lane = { rank: L.rank[k], stream: L.stream[k], from: i, bare: e };
    for (let t = 0, far = -Infinity; i < lane.from + L.spans[k]; i++) {
      t += S.start[i]; start[i] = t / 1e6; end[i] = (t + S.length[i]) / 1e6;
      reach[i] = far = Math.max(far, end[i]); // ascends, even where spans overlap
      S.at.set(key(lane.rank, S.name[i], S.step[i]), i);
    }
    for (let t = 0; e < lane.bare + L.exposed[k]; e++) {
      t += S.exposed.start[e];
      bare.start[e] = t / 1e6; bare.end[e] = (t + S.exposed.length[e]) / 1e6;
    }
    lane.to = i; lane.bareTo = e; S.lanes.push(lane);
    S.ofRank.set(lane.rank, [...(S.ofRank.get(lane.rank) || []), lane]);
  }
  Object.assign(S, { start, end, reach, exposed: bare, waited: S.waited.map(milliseconds) });
  const steps = S.steps;
  for (const k of ["start", "begun", "end", "iteration", "exposed"]) steps[k] = steps[k].map(milliseconds);
  S.onPath = new Map(Object.entries(S.paths).map(([step, list]) => [+step, new Set(list)]));
  S.first = least(S.steps.start); S.last = most(S.steps.end);
}
sides.forEach(decode);
const ascending = (list) => [...new Set(list)].sort((a, b) => a - b);
const ranks = ascending(sides.flatMap((S) => S.lanes.map((L) => L.rank)));
const steps = ascending(sides.flatMap((S) => S.steps.step));
const lookOf = (S, L, i) => { // an index into D.looks
  const ofStream = D.streams[L.stream][1];
  return ofStream < 0 ? D.look[S.name[i]] : ofStream;
};
const moves = (L) => D.streams[L.stream][2];
const now = (S, i) => S.now === null || S.step[i] === S.now; // whether in the step on show

function bound(column, from, to, t) { // the first at or after t
  while (from < to) {
    const k = (from + to) >> 1;
    if (column[k] < t) from = k + 1; else to = k;
  }
  return from;
}

// ---- words
function fixed(v, digits) { // zero has no sign
  const text = v.toFixed(digits);
  return text.replace("-", /[1-9]/.test(text) ? "−" : "");
}
const ms = (v) => fixed(v, v && Math.abs(v) < 0.1 ? 4 : 3) + " ms";
const brief = (v) => Number.isNaN(v) ? "–" : fixed(v, 2) + " ms"; // a step without end has no time
const signed = (v, f) => (v > 0 && /[1-9]/.test(f(v)) ? "+" : "") + f(v);
// The error of a prediction, or the change from the first plan to the second.
const apart = (p, m) => (D.change ? m - p : p - m);
const percent = (p, m) => {
  const share = 100 * apart(p, m) / (D.change ? p : m);
  return Number.isFinite(share) ? ` (${signed(share, (v) => fixed(v, 1))} %)` : "";
};
const many = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
function bytes(v) {
  const k = v < 1 ? 0 : Math.min(4, Math.floor(Math.log10(v) / 3));
  return k ? `${+(v / 1000 ** k).toPrecision(4)} ${" kMGT"[k]}B` : `${v} B`;
}
function ranges(list) { // 0,3,8-15
  const found = [];
  for (const r of ascending(list)) {
    if (found.length && found.at(-1)[1] === r - 1) found.at(-1)[1] = r; else found.push([r, r]);
  }
  return found.map(([a, b]) => (a === b ? a : b === a + 1 ? `${a},${b}` : `${a}-${b}`)).join(",");
}

// ---- steps: each side counts from the first start of its own step
function span(S) { // [first start, last end] of what is on show
  const k = S.steps.step.indexOf(S.now);
  return k < 0 ? [S.first, S.last] : [S.steps.start[k], S.steps.end[k]];
}
function choose(step) { // where a side lacks the step, its median one stands for it
  state.step = step; state.focus = state.range = null;
  for (const S of sides) {
    S.now = step === null ? null : S.steps.step.includes(step) ? step : S.median;
    S.origin = span(S)[0];
  }
  $("step").value = step === null ? "all" : step;
  totals(); match(); fit(); panel(); summarise();
}
function leaf(way) {
  const next = steps[steps.indexOf(state.step) + way];
  if (state.step !== null && next !== undefined) choose(next);
}
function fit() {
  const longest = Math.max(...sides.map((S) => span(S)[1] - S.origin), LEAST);
  look(-0.004 * longest, 1.004 * longest);
}
function look(a, b) { // keep some of the run in sight
  const low = Math.min(...sides.map((S) => S.first - S.origin));
  const high = Math.max(...sides.map((S) => S.last - S.origin));
  const width = Math.min(Math.max(b - a, LEAST), 1.2 * (high - low) + LEAST);
  const middle = Math.min(Math.max((a + b) / 2, low), high);
  state.a = middle - width / 2; state.b = middle + width / 2; draw();
}
const zoom = (factor, at = (state.a + state.b) / 2) =>
  look(at - (at - state.a) * factor, at + (state.b - at) * factor);
function pan(share) {
  const by = share * (state.b - state.a);
  look(state.a + by, state.b + by);
}

// ---- rows: ranks, in each the sides, in each the streams; folded ranks share a row
let rows, groups, heads;
function layout() {
  rows = []; groups = []; heads = [];
  let y = 8, folded = [];
  const fold = () => {
    if (folded.length) { rows.push({ y, h: 22, folded }); y += 32; folded = []; }
  };
  for (const rank of ranks) {
    if (!state.open.has(rank)) { folded.push(rank); continue; }
    fold();
    const top = y;
    for (const S of sides) {
      const lanes = S.ofRank.get(rank) || [];
      if (!lanes.length) continue;
      const from = y += y > top ? 6 : 0;
      for (const lane of lanes) { rows.push({ y, h: LANE - 1.5, S, lane }); y += LANE; }
      groups.push({ y: from, h: y - from, text: S.kind });
    }
    y = Math.max(y, top + 34);
    heads.push({ y: top, h: y - top, rank }); y += 16;
  }
  fold();
  state.height = y + AXIS;
  $("ranks").value = state.open.size === ranks.length ? "all" : ranges([...state.open]);
}
function unfold(text) { // "0,3,8-15" or "all"
  const wanted = new Set(), wrong = [];
  for (const part of text.split(",").map((p) => p.trim()).filter(Boolean)) {
    const [fits, a, b] = /^(\d{1,9})(?:-(\d{1,9}))?$/.exec(part) || [];
    const some = part === "all" ? ranks : ranks.filter((r) => fits && r >= +a && r <= +(b ?? a));
    if (some.length) some.forEach((r) => wanted.add(r)); else wrong.push(part);
  }
  const known = `${ranges(ranks)} have spans`;
  $("ranks").setCustomValidity(wrong.length ? `no rank ${wrong[0]}; ranks ${known}` : "");
  $("ranks").reportValidity();
  if (!wrong.length) reopen(wanted);
}
function reopen(open) { state.open = open; layout(); match(); draw(); }
