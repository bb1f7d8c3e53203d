// The charts of the last ten minutes. This file asks no server.
"use strict";

const COLOURS = ["--accent", "--second", "--good", "--bad", "--fifth", "--sixth"];
// Distances between ticks: round numbers, and round binary units for bytes.
const DECIMAL = Array.from({ length: 42 }, (_, index) => Number([1, 2, 5][index % 3] + "e" + (Math.floor(index / 3) - 1)));
const BINARY = Array.from({ length: 50 }, (_, index) => 2 ** index);
let charts = [];
let shown = [];
let shownProtocols = "";

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function makeChart(id, data, series, y, axis) {
  const place = document.getElementById(id);
  const grid = { stroke: colour("--line"), width: 1 };
  const common = { stroke: colour("--faint"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
  const options = {
    width: place.clientWidth, height: place.clientHeight, legend: { show: false }, cursor: { show: false },
    scales: { y },
    axes: [{ ...common, space: 70, values: (plot, times) => times.map((time) => clockTime(time * 1000)) }, { ...common, size: 70, ...axis }],
    series: [{}, ...series],
  };
  return { place, data, plot: new uPlot(options, data(), place) };
}

// A line from 0, with an area under it.
function amount(id, of, format, incrs, stroke) {
  const data = () => [shown.map((point) => point.unix_millis / 1000), shown.map(of)];
  const series = { stroke: colour(stroke), width: 2, fill: colour("--bar") + "66", points: { show: false } };
  return makeChart(id, data, [series], { range: (plot, least, most) => [0, Math.max(most * 1.1, 1)] },
    { incrs, values: (plot, values) => values.map((value) => tick(format(value))) });
}

function protocols() { return [...new Set(shown.flatMap((point) => Object.keys(point.latency_micros)))].sort(); }

// Two lines for each protocol. They differ by decades, so the scale is logarithmic, and its ticks are powers of ten.
function latencies() {
  const names = protocols();
  const parts = names.flatMap((name, index) => [["p99", []], ["p50", [4, 4]]].map(([percentile, dash]) =>
    ({ name, percentile, dash, stroke: colour(COLOURS[index % COLOURS.length]) })));
  const of = ({ name, percentile }) => shown.map((point) => name in point.latency_micros ? point.latency_micros[name][percentile] : null);
  const data = () => [shown.map((point) => point.unix_millis / 1000), ...parts.map(of)];
  const series = parts.map(({ dash, stroke }) => ({ stroke, dash, width: 1.5, spanGaps: true, points: { show: true, size: 3, fill: stroke } }));
  const decade = (value, round) => 10 ** round(Math.log10(Math.max(value, 0.01)));
  const range = (plot, least, most) => {
    const low = decade(least || 1, Math.floor);
    return [low, Math.max(decade(most || 1, Math.ceil), low * 10)];
  };
  const splits = (plot) => {
    const ticks = [];
    for (let power = Math.round(Math.log10(plot.scales.y.min)); 10 ** power <= plot.scales.y.max * 1.001; power += 1) ticks.push(10 ** power);
    return ticks;
  };
  const legend = names.map((name, index) => {
    const part = document.createElement("span");
    part.textContent = name;
    part.style.color = colour(COLOURS[index % COLOURS.length]);
    return part;
  });
  document.getElementById("latency-legend").replaceChildren(...legend);
  shownProtocols = names.join();
  return makeChart("chart-latency", data, series, { distr: 3, range },
    { splits, filter: (plot, values) => values, values: (plot, values) => values.map((value) => tick(micros(value))) });
}

function makeCharts() {
  charts.forEach((chart) => chart.plot.destroy());
  charts = [amount("chart-rate", (point) => point.requests_per_second, rate, DECIMAL, "--accent"), latencies(),
    amount("chart-memory", (point) => point.memory_bytes, bytes, BINARY, "--second")];
}

function drawCharts(points) {
  shown = points;
  if (protocols().join() !== shownProtocols) makeCharts();
  charts.forEach((chart) => chart.plot.setData(chart.data()));
}

makeCharts();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", makeCharts);
new ResizeObserver(() => charts.forEach(({ place, plot }) => plot.setSize({ width: place.clientWidth, height: place.clientHeight })))
  .observe(document.querySelector(".charts"));
