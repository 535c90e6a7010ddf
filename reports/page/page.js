// The page at work: figures, the switch of the cost axis, cards of trials, tables and downloads.

const byId = (id) => document.getElementById(id);

/* A text that the page holds packed: base64 of gzip. */
async function unpack(id) {
  const packed = Uint8Array.from(atob(byId(id).textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const text = await unpack("data");
const data = JSON.parse(text);
const figures = {}; // promises of those that are drawn, or about to be
let plotly; // the promise of its script
const config = {
  displaylogo: false,
  responsive: true,
  showSendToCloud: false, // Plotly's "Share chart" uploads the figure to its cloud: there is none here
  modeBarButtonsToRemove: ["select2d", "lasso2d"],
};

const wordsOf = (unit) => data.words[unit] ?? unit;

/* An element with attributes and children; text is only ever text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

async function loadPlotly() {
  const script = make("script");
  script.nonce = document.querySelector("script[nonce]").nonce;
  script.textContent = await unpack("plotly");
  document.head.append(script);
}

/* The figure of this name, drawn: at once for a reader who asks before its turn has come. */
function draw(name) {
  return (figures[name] ??= drawNow(name));
}

async function drawNow(name) {
  const spec = JSON.parse(await unpack(`figure-${name}`));
  await (plotly ??= loadPlotly());
  const plot = byId(name);
  await Plotly.newPlot(plot, spec.data, spec.layout, config);
  plot.on("plotly_click", ({ points }) => {
    const key = points[0].customdata;
    if (Array.isArray(key) && key[1] !== null) openCard(key[0], key[1]);
  });
  plot.dataset.drawn = Math.round(performance.now());
  return plot;
}

async function drawAll() {
  await draw("front");
  for (const { id } of document.querySelectorAll("script[id^=figure-]")) {
    await new Promise((next) => setTimeout(next)); // let the reader scroll meanwhile
    await draw(id.replace("figure-", ""));
  }
  document.body.dataset.ready = "yes";
}

/* The switch: every point knows its run and its trial, and a trial its size in each unit, but latencies only on
   the front: other points vanish. Those with fewer bits know their engine too, and stand on its milliseconds. */
async function switchAxis(unit) {
  const plot = await draw("front");
  const indices = [], xs = [], modes = [], visible = [];
  plot.data.forEach((trace, index) => {
    if (trace.meta === "ratio") { // cascades have a place on the axis of the run's own cost alone
      trace.shown ??= trace.visible ?? true;
      indices.push(index), xs.push(trace.x), modes.push(trace.mode), visible.push(unit ? false : trace.shown);
      return;
    }
    if (!trace.customdata) return;
    indices.push(index);
    const engine = trace.customdata[0][2];
    const counted = engine ? data.beside[unit]?.[engine] : unit;
    visible.push(engine ? counted !== undefined : trace.visible ?? true);
    xs.push(trace.customdata.map(([run, number]) => (engine && !counted ? null : sizeOf(run, number, counted))));
    const own = data.runs[trace.customdata[0][0]]; // in another unit the points are in no order
    modes.push(trace.line?.shape && (!unit || unit === own.unit) ? "lines+markers" : "markers");
  });
  plot.own ??= { annotations: plot.layout.annotations ?? [], ticks: plot.layout.xaxis.tickvals ?? null, title: plot.layout.xaxis.title.text, range: [...plot.layout.xaxis.range], format: plot.layout.xaxis.tickformat };
  const axis = unit
    ? { annotations: plot.own.annotations.filter((one) => (one.xref ?? "x") !== "x"), "xaxis.title.text": escapeMarkup(wordsOf(unit)), "xaxis.tickformat": unit.startsWith("ms@") ? ".3~r" : ".3~s", "xaxis.tickmode": "auto", "xaxis.autorange": true }
    : { annotations: plot.own.annotations, "xaxis.title.text": plot.own.title, "xaxis.tickformat": plot.own.format, "xaxis.tickmode": plot.own.ticks ? "array" : "auto", "xaxis.range": plot.own.range };
  Plotly.update(plot, { x: xs, mode: modes, visible }, axis, indices);
}

function sizeOf(run, number, unit) {
  const found = number === null ? data.runs[run].unpruned : trialOf(run, number);
  return unit ? found.sizes[unit] ?? found.latencies?.[unit] ?? null : found.ratio;
}

function trialOf(run, number) {
  return data.runs[run].trials.find((row) => row.trial === number);
}

/* Cards. */
let opener = null;

/* Indices of a run and a trial, as buttons and options name them. */
function indicesOf(value) {
  return value.split(" ").map(Number);
}

function openCard(run, number) {
  const trial = trialOf(run, number);
  if (!trial) return;
  const card = byId("card");
  if (card.hidden) opener = document.activeElement;
  const title = make("h3", { id: "card-title" }, nameOf(run, number));
  const close = make("button", { type: "button", id: "close" }, "Close");
  close.addEventListener("click", closeCard);
  const columns = make("div", { class: "columns" }, facts(run, trial));
  if (trial.layers) columns.append(layers(trial));
  card.replaceChildren(make("header", {}, title, close), columns);
  if (trial.curve) drawCurve(card, trial);
  if (trial.metric !== undefined) {
    const command = `${data.runs[run].export} --trial ${number} --out my-model`;
    card.append(copied(make("p", { class: "command" }, make("code", {}, command))));
  }
  if (trial.folder) card.append(artifacts(trial));
  card.hidden = false;
  byId("pick").value = `${run} ${number}`;
  history.replaceState(null, "", `#trial-${run}-${number}`);
  card.focus({ preventScroll: true });
  card.scrollIntoView({ block: "nearest" });
}

function closeCard() {
  byId("card").hidden = true;
  byId("pick").value = "";
  history.replaceState(null, "", location.pathname + location.search);
  opener?.focus();
}

function nameOf(run, number) {
  const prefix = data.runs.length > 1 ? `${data.runs[run].name}: ` : "";
  return `${prefix}trial ${number}`;
}

function facts(run, trial) {
  const rows = [["state", trial.state + (trial.failure ? `: ${trial.failure}` : "")]];
  if (trial.metric !== undefined) {
    rows.push(
      ...Object.entries(trial.divergences).map(([name, value]) => [name, short(value)]),
      [data.runs[run].metric, withInterval(trial.metric, trial.interval)],
      ["held out", withInterval(trial.heldout_metric, trial.heldout_interval)],
      [`${data.cost} ratio`, ratioText(trial.ratio)],
      ["target ratio", `${ratioText(trial.target_ratio)} ± ${(100 * trial.tolerance).toPrecision(3)}%`],
      ...Object.entries({ ...trial.sizes, ...trial.latencies }).map(([unit, size]) => [wordsOf(unit), size.toLocaleString("en")]),
    );
    for (const [engine, served] of Object.entries(trial.engines ?? {})) {
      rows.push([`MB in ${engine}`, served.megabytes.toFixed(1)]);
      if (served.metric === undefined) continue;
      rows.push([`${data.runs[run].task_metric} in ${engine}`, withInterval(served.metric, served.interval)]);
      rows.push([`held out in ${engine}`, withInterval(served.heldout_metric, served.heldout_interval)]);
    }
  }
  if (trial.seconds !== undefined) rows.push(["seconds", trial.seconds]);
  for (const named of [trial.knobs, trial.attributes ?? {}])
    for (const [name, value] of Object.entries(named)) rows.push([name, short(value)]);
  return tableOf("Results and knobs", ["name", "value"], rows);
}

function ratioText(ratio) {
  return ratio < 0.01 ? `${Number(ratio.toPrecision(2))}` : ratio.toFixed(4);
}

function withInterval(value, interval) {
  return `${value.toFixed(4)} (95%: ${interval[0].toFixed(3)} to ${interval[1].toFixed(3)})`;
}

function short(value) {
  if (typeof value === "number") return Number.isInteger(value) ? value : value.toPrecision(4);
  return typeof value === "object" ? JSON.stringify(value) : value;
}

function layers(trial) {
  const kinds = Object.values(trial.layers);
  const rows = kinds[0].map((_, layer) => [layer + 1, ...kinds.map((of) => of[layer])]);
  return tableOf("What is left of each layer", ["layer", ...Object.keys(trial.layers)], rows);
}

function artifacts(trial) {
  const links = [...trial.files, "model/"].map((file) =>
    make("li", {}, make("a", { href: addressOf(`${trial.folder}/${file}`) }, file)));
  return make("div", {}, make("p", {}, "Its files, beside this page:"), make("ul", {}, ...links));
}

/* A relative path as an address: a "#" or "?" in it is part of a name. */
function addressOf(path) {
  return path.split("/").map(encodeURIComponent).join("/");
}

/* One small plot above another, on the steps of the search. */
async function drawCurve(card, trial) {
  const names = Object.keys(trial.curve);
  const height = 60 + 110 * names.length;
  const plot = make("div", { class: "plot", id: "curve", style: `height: ${height}px` });
  card.append(make("h4", {}, "Learning curves"));
  if (trial.train_divergence != null) card.append(make("p", {},
    `Divergence from the teacher at the end: ${short(trial.train_divergence)} on rows that the student learnt from, ${short(trial.divergence)} on others (selection split).`));
  card.append(plot);
  const front = (await draw("front")).layout;
  if (!plot.isConnected) return; // another card was opened meanwhile
  const axis = { gridcolor: front.xaxis.gridcolor, zeroline: false, automargin: true };
  const layout = {
    ...front,
    height, xaxis: { ...axis, anchor: `y${names.length}`, title: { text: "step", standoff: 8 } },
    shapes: [], annotations: [], showlegend: false, margin: { l: 60, r: 20, t: 30, b: 50 },
  };
  const traces = names.map((name, index) => {
    const own = index ? `y${index + 1}` : "y";
    const top = 1 - index / names.length;
    layout[own.replace("y", "yaxis")] = { ...axis, domain: [Math.max(0, top - 0.75 / names.length), top], nticks: 4 };
    layout.annotations.push({
      text: escapeMarkup(name), xref: "paper", x: 1, xanchor: "right", yref: "paper", y: top, yanchor: "top", showarrow: false,
    });
    const [x, y] = trial.curve[name];
    return { x, y, yaxis: own, name: escapeMarkup(name), mode: "lines", line: { color: "#0072B2" } };
  });
  for (const [stage, start] of Object.entries(trial.stages)) {
    layout.shapes.push({
      type: "line", x0: start, x1: start, yref: "paper", y0: 0, y1: 1, line: { width: 1, dash: "dot", color: "#808080" },
    });
    layout.annotations.push({
      x: start, xanchor: "left", yref: "paper", y: 1, yanchor: "bottom", showarrow: false, text: escapeMarkup(stage),
    });
  }
  Plotly.newPlot(plot, traces, layout, { ...config, displayModeBar: false });
}

function escapeMarkup(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/* Tables and downloads. */
function copied(line) {
  const code = line.querySelector("code");
  const button = make("button", { type: "button", "aria-label": `Copy ${code.textContent}` }, "Copy");
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(code.textContent); }
    catch { getSelection().selectAllChildren(code); document.execCommand("copy"); } // refused
    button.textContent = "Copied";
  });
  line.append(button);
  return line;
}

/* Numbers by size, text by the alphabet, what is empty last; a second click turns the order. */
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, index) => {
    const button = make("button", { type: "button", class: "sort" }, ...head.childNodes);
    head.append(button);
    const keyOf = (row) => row.cells[index].textContent.trim();
    button.addEventListener("click", () => {
      const turned = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", turned > 0 ? "ascending" : "descending");
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort((one, other) => {
        const [a, b] = [keyOf(one), keyOf(other)];
        if (!a || !b) return !a - !b;
        const [x, y] = [a, b].map((text) => parseFloat(text.replaceAll(",", "")));
        return turned * (isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) || a.localeCompare(b) : x - y);
      }));
    });
  });
  return table;
}

function tableOf(caption, columns, rows) {
  const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)));
  const body = rows.map((row) =>
    make("tr", {}, ...row.map((cell, index) =>
      index ? make("td", {}, String(cell ?? "")) : make("th", { scope: "row" }, String(cell ?? "")))));
  const table = sortable(make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...body)));
  return make("div", { class: "wide tall", role: "region", tabindex: "0", "aria-label": caption }, table);
}

/* What a figure draws, one row a point, without the columns that are empty. */
function figureRows(plot) {
  const columns = ["series", "x axis", "x", "y axis", "y", "low", "high", "start", "value", "run", "trial"];
  const rows = [];
  for (const trace of plot.data) {
    const title = (axis) => plot.layout[axis]?.title?.text ?? "";
    const [xTitle, yTitle] = ["x", "y"].map((own) => title((trace[`${own}axis`] ?? own).replace(own, `${own}axis`)));
    if (trace.type === "heatmap") {
      trace.z.forEach((line, i) => line.forEach((value, j) =>
        rows.push([trace.name, xTitle, trace.x[j], yTitle, trace.y[i], null, null, null, trace.text?.[i]?.[j] ?? value])));
      continue;
    }
    (trace.x ?? []).forEach((x, i) => {
      if (x === null) return;
      const bar = trace.error_y?.array ? trace.error_y : null;
      const y = trace.y[i];
      const [run, number] = trace.customdata?.[i] ?? [];
      rows.push([
        trace.name, xTitle, x, yTitle, y, bar && y - (bar.arrayminus ?? bar.array)[i], bar && y + bar.array[i],
        trace.base?.[i], null, data.runs[run]?.name, number,
      ]);
    });
  }
  const kept = columns.map((_, index) => rows.some((row) => (row[index] ?? "") !== ""));
  const only = (row) => columns.map((_, index) => row[index] ?? "").filter((_, index) => kept[index]);
  return { columns: only(columns), rows: rows.map(only) };
}

function trialRows() {
  const knobs = [...new Set(data.runs.flatMap((run) => run.trials.flatMap((row) => Object.keys(row.knobs))))];
  const columns = ["run", "trial", "state", "metric", "heldout_metric", "ratio", "target_ratio", "seconds"];
  const far = Object.keys(data.runs[0].unpruned.divergences);
  const rows = data.runs.flatMap((run) => run.trials.map((row) => [
    run.name, ...columns.slice(1).map((name) => row[name]), ...far.map((name) => row.divergences?.[name]),
    ...data.units.map((unit) => row.sizes?.[unit]), ...data.latencies.map((unit) => row.latencies?.[unit]), ...knobs.map((name) => row.knobs[name]),
  ]));
  return { columns: [...columns, ...far, ...data.units, ...data.latencies, ...knobs], rows };
}

function csvOf({ columns, rows }) {
  const cell = (value) => {
    let text = String(value ?? "");
    if (typeof value === "string" && /^[=+\-@\t]/.test(text)) text = `'${text}`; // no formula for a spreadsheet
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

function download(name, type, content) {
  const link = make("a", { download: name, href: URL.createObjectURL(new Blob([content], { type })) });
  link.click();
  URL.revokeObjectURL(link.href);
}

const MOST_ROWS = 500; // more would be no table to read; the CSV has all

async function showNumbers(details) {
  const name = details.dataset.figure;
  const plot = await draw(name);
  if (!details.open || details.querySelector("table")) return;
  const { columns, rows } = figureRows(plot);
  const shown = rows.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${rows.length} rows` : `${rows.length} rows`;
  const tidy = rows.slice(0, MOST_ROWS).map((row) => row.map(short));
  const button = make("button", { type: "button" }, "All as CSV");
  button.addEventListener("click", () => download(`${name}.csv`, "text/csv", csvOf(figureRows(plot))));
  details.append(make("p", { class: "tools" }, button), tableOf(shown, columns, tidy));
}

/* What the reader does. */
for (const details of document.querySelectorAll("details.data"))
  details.addEventListener("toggle", () => showNumbers(details));
document.querySelectorAll("p.command").forEach(copied);
document.querySelectorAll("table[data-sortable]").forEach(sortable);
for (const button of document.querySelectorAll("button.trial"))
  button.addEventListener("click", () => openCard(...indicesOf(button.value)));
byId("axis").addEventListener("change", (event) => switchAxis(event.target.value));
data.runs.forEach((run, index) => {
  for (const { trial } of run.trials) byId("pick").append(make("option", { value: `${index} ${trial}` }, nameOf(index, trial)));
});
byId("pick").addEventListener("change", (event) => {
  if (event.target.value) openCard(...indicesOf(event.target.value));
  else closeCard();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !byId("card").hidden) closeCard();
});
byId("csv").addEventListener("click", () => download("trials.csv", "text/csv", csvOf(trialRows())));
byId("json").addEventListener("click", () => download("report.json", "application/json", text));
const follow = byId("follow");
if (follow) {
  let timer;
  const set = () => {
    clearTimeout(timer);
    if (follow.checked) timer = setTimeout(() => location.reload(), 10_000);
    try { sessionStorage.setItem("follow", follow.checked ? "yes" : ""); } catch { /* private window */ }
  };
  try { follow.checked = sessionStorage.getItem("follow") === "yes"; } catch { /* private window */ }
  follow.addEventListener("change", set);
  set();
}
const linked = location.hash.match(/^#trial-(\d+)-(\d+)$/);
if (linked) openCard(Number(linked[1]), Number(linked[2]));
drawAll();
