// Numbers for people, and tables of them. This file asks no server.
"use strict";

const NONE = "–";

function scaled(value, base, units, digits) {
  let unit = 0;
  while (unit + 1 < units.length && value >= base * 0.9995) { value /= base; unit += 1; }
  const shown = unit === 0 && Number.isInteger(value) ? String(value) : value.toFixed(value < 10 ? digits : value < 100 ? 1 : 0);
  return shown + units[unit];
}

function count(value) {
  if (value < 10000) return String(Math.round(value));
  return scaled(value, 1000, ["", " k", " M", " G", " T"], 2);
}

function rate(value) { return value === null ? NONE : value > 0 && value < 10 ? value.toFixed(1) : count(value); }

function bytes(value) { return scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"], 2); }

function micros(value) {
  if (value === null || value === undefined) return NONE;
  return scaled(value < 10 ? Number(value.toFixed(2)) : Math.round(value), 1000, [" µs", " ms", " s"], 2);
}

// A figure of a tick, which is round: without zeros behind its point.
function tick(figure) { return figure.replace(/\.0+(?=\D|$)|(\.\d*[1-9])0+(?=\D|$)/, "$1"); }

function seconds(value) {
  if (value === null || value === undefined) return NONE;
  const whole = Math.floor(value);
  if (whole < 60) return value < 10 && value !== whole ? value.toFixed(1) + " s" : whole + " s";
  if (whole < 3600) return Math.floor(whole / 60) + " min " + (whole % 60) + " s";
  if (whole < 86400) return Math.floor(whole / 3600) + " h " + Math.floor(whole % 3600 / 60) + " min";
  return Math.floor(whole / 86400) + " d " + Math.floor(whole % 86400 / 3600) + " h";
}

function clockTime(millis) {
  const time = new Date(millis);
  const two = (number) => String(number).padStart(2, "0");
  return two(time.getHours()) + ":" + two(time.getMinutes()) + ":" + two(time.getSeconds());
}

// Control characters and the like would not be seen.
function visible(name) { return name.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e]/g, (one) => "\\x" + one.charCodeAt(0).toString(16).padStart(2, "0")); }

function cell(row, content, [title, kind]) {
  const made = row.insertCell();
  // On a small screen each cell shows its title.
  made.dataset.title = title;
  if (content instanceof Node) made.append(content); else made.textContent = content;
  made.className = [kind || "", content === NONE ? "none" : ""].join(" ").trim();
  if (kind && kind.includes("name")) made.title = made.textContent;
}

// Shows rows as a table, or says that there are none; without words for that it shows nothing. A column is its title and its kind.
function show(id, columns, rows, empty) {
  const place = document.getElementById(id);
  // A button that is replaced while it is pressed is not clicked.
  if (pressed !== null && place.contains(pressed)) return;
  const focused = place.contains(document.activeElement) ? document.activeElement.textContent : null;
  place.hidden = rows.length === 0 && empty === "";
  if (rows.length === 0) {
    const said = document.createElement("p");
    said.className = "empty";
    said.textContent = empty;
    place.replaceChildren(said);
    return;
  }
  const table = document.createElement("table");
  const titled = columns.some(([title]) => title !== "");
  const head = titled ? table.createTHead().insertRow() : null;
  for (const [title, kind] of titled ? columns : []) {
    const made = document.createElement("th");
    made.textContent = title;
    made.scope = "col";
    if (kind && kind.includes("text")) made.className = "text";
    head.append(made);
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((content, index) => cell(line, content, columns[index]));
  }
  const top = place.scrollTop, left = place.scrollLeft;
  place.replaceChildren(table);
  place.scrollTop = top;
  place.scrollLeft = left;
  if (focused !== null) [...place.querySelectorAll("button")].filter((one) => one.textContent === focused).slice(0, 1).forEach((one) => one.focus());
}

// What the pointer is pressed on.
let pressed = null;
addEventListener("pointerdown", (event) => { pressed = event.target; });
for (const event of ["pointerup", "pointercancel"]) addEventListener(event, () => { pressed = null; });

function share(part, whole) {
  const bar = document.createElement("progress");
  bar.max = Math.max(whole, 1);
  bar.value = part;
  return bar;
}

function text(id, content) { document.getElementById(id).textContent = content; }
