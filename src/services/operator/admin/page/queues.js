// A queue from near: what is in each state, with the reasons of failures, and what an operator may do about it. This file
// asks the server about queues, and sends what was clicked. A second click confirms what cannot be taken back.
"use strict";

const STATES = ["ready", "delayed", "lent", "dead", "dropped"];
// The figure of a state in the document of the server.
const FIGURE = { ready: "ready", delayed: "delayed", lent: "leased", dead: "dead", dropped: "dropped" };
const PAGE = 50;
// The queue that is shown, its state, and where its page begins.
let near = null;
// Which of several answers is the latest.
let asked = 0;
// The last document of the server.
let lately = null;

// The queue of a stored name, with its bytes as they are in a path. null: it is none of tasks or jobs.
function target(name) {
  if (name === "tasks") return { family: "tasks", queue: "default" };
  const isHex = name.startsWith("0x");
  const hex = (text) => [...text].map((one) => one.charCodeAt(0).toString(16)).join("");
  for (const family of ["tasks", "jobs"]) {
    const prefix = isHex ? "0x" + hex(family + "/") : family + "/";
    if (!name.startsWith(prefix) || name.length === prefix.length) continue;
    const rest = name.slice(prefix.length);
    return { family, queue: isHex ? rest.replace(/../g, "%$&") : encodeURIComponent(rest) };
  }
  return null;
}

// The bytes of a key in a path.
function escaped(text) { return text.startsWith("0x") ? text.slice(2).replace(/../g, "%$&") : encodeURIComponent(text); }

function button(label, act, confirms) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.addEventListener("click", () => {
    if (confirms && made.dataset.armed === undefined) {
      made.dataset.armed = "";
      made.textContent = "Really " + label.toLowerCase() + "?";
      setTimeout(() => { delete made.dataset.armed; made.textContent = label; }, 4000);
      return;
    }
    act();
  });
  return made;
}

// A queue's name, which shows it from near.
function queueLink(name) {
  return target(name) === null ? visible(name) : button(visible(name), () => { near = { name, state: "dead", group: null, from: [""] }; showNear(); });
}

function said(words, isBad) {
  const place = document.getElementById("near-said");
  place.textContent = words;
  place.className = isBad ? "note bad" : "note";
}

async function ask(path, parameters, method) {
  const { family, queue } = target(near.name);
  const headers = method === "POST" ? { "X-Spindle-Change": "page" } : {};
  const reply = await fetch("queues" + path + "?family=" + family + "&queue=" + queue + parameters, { method, headers });
  const json = await reply.json().catch(() => ({ error: "the server does not answer" }));
  if (!reply.ok) throw new Error(json.error);
  return json;
}

// Has the server change something, and shows what has become of it.
async function change(path, parameters, words) {
  try {
    const json = await ask(path, parameters, "POST");
    said(words(json), false);
  } catch (error) {
    said(error.message, true);
  }
  near.from = [""];
  showNear();
}

function kick(parameters) { return change("/kick", parameters, (json) => count(json.kicked) + " kicked"); }

function purge(state) { return change("/purge", "&states=" + state, (json) => count(json.removed) + " removed"); }

function pauseQueue(length, words) { return change("/configure", "&pause=" + length, () => words); }

function stateTabs() {
  return STATES.map((state) => {
    const tab = button(state, () => { near.state = state; near.from = [""]; showNear(); });
    tab.dataset.state = state;
    label(tab);
    tab.setAttribute("aria-pressed", String(state === near.state));
    return tab;
  });
}

// The state of a tab, and how many are in it, as the live document has it.
function label(tab) {
  const queue = lately && lately.tasks && lately.tasks.queues.find((one) => one.name === near.name);
  const words = tab.dataset.state + (queue ? " " + count(queue[FIGURE[tab.dataset.state]]) : "");
  if (tab.textContent !== words) tab.textContent = words;
}

function actions() {
  const made = [];
  if (near.state === "dead" || near.state === "delayed") made.push(button("Kick all", () => kick("&state=" + near.state)));
  if (near.state !== "lent") made.push(button("Purge all", () => purge(near.state), true));
  made.push(button("Pause", () => pauseQueue("on", "paused until it is resumed")), button("Resume", () => pauseQueue("off", "resumed")));
  if (near.group !== null) made.push(button("All groups", () => { near.group = null; near.from = [""]; showNear(); }));
  return made;
}

function taskRow(task) {
  const named = task.key === undefined ? task.id : task.key;
  const group = button(visible(task.group), () => { near.group = task.group; near.from = [""]; showNear(); });
  const one = "&" + (task.key === undefined ? "id=" : "key=") + escaped(named);
  const act = task.state === "dead" || task.state === "delayed" ? button("Kick", () => kick(one)) : NONE;
  const left = task.left_ms === null ? NONE : seconds(task.left_ms / 1000);
  const value = bytes(task.bytes) + (task.first === "" ? "" : ": " + visible(task.first));
  return [visible(named), count(task.class), count(task.tries), task.group === "" ? NONE : group, seconds(task.age_ms / 1000), left,
    task.reason === "" ? NONE : visible(task.reason), value, act];
}

// Shows a page of the queue.
async function showNear() {
  const own = asked += 1;
  document.getElementById("near").hidden = near === null;
  if (near === null) return;
  text("near-name", visible(near.name));
  document.getElementById("near-states").replaceChildren(...stateTabs());
  document.getElementById("near-actions").replaceChildren(...actions());
  const from = near.from[near.from.length - 1];
  const group = near.group === null ? "" : "&group=" + escaped(near.group);
  const parameters = "&state=" + near.state + "&most=" + PAGE + group + (from === "" ? "" : "&from=" + from);
  try {
    const page = await ask("/peek", parameters, "GET");
    if (own !== asked) return;
    show("near-tasks", [[target(near.name).family === "jobs" ? "id" : "key", "text name"], ["class"], ["tries"], ["group", "text"], ["age"], ["changes in"],
      ["reason", "text name"], ["value", "text name"], ["", "text"]], page.tasks.map(taskRow),
      near.state === "lent" ? "Nothing is lent." : "Nothing is " + near.state + ".");
    const pages = [];
    if (near.from.length > 1) pages.push(button("Page before", () => { near.from.pop(); showNear(); }));
    if (page.next !== null) pages.push(button("Next page", () => { near.from.push(page.next); showNear(); }));
    document.getElementById("near-pages").replaceChildren(...pages);
  } catch (error) {
    if (own === asked) said(error.message, true);
  }
}

// Shows the figures of each state in its tab.
function updateNear(now) {
  lately = now;
  if (near !== null) document.querySelectorAll("#near-states button").forEach(label);
}

document.getElementById("near-close").addEventListener("click", () => { near = null; showNear(); });
document.getElementById("near-again").addEventListener("click", () => { said("", false); showNear(); });
