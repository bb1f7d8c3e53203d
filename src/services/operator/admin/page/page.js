// Shows the metrics that the server sends once a second, and continues when the server comes back. While the page is
// hidden it has no connection: a browser has six for a server, and each page that is live takes one.
"use strict";

// The server keeps as many points.
const KEPT = 600;
let points = [];
let before = null;
let source = null;

// The verbs of all protocols as one list.
function verbsOf(now) {
  const line = (protocol) => (verb) => ({ protocol, verb: verb.verb, requests: verb.requests, refused: verb.refused,
    execution: verb.latency_micros, whole: verb.end_to_end_micros });
  const lockstep = now.lockstep ? now.lockstep.verbs.map(line("lockstep")) : [];
  // The commands of the lock-step dialect count among those of the tables too.
  const part = (verb, of) => lockstep.filter((one) => one.verb === verb).reduce((sum, one) => sum + one[of], 0);
  const tables = Object.entries(now.commands).map(([verb, one]) => ({
    protocol: "kv", verb, requests: one.requests - part(verb, "requests"),
    refused: Object.values(one.errors).reduce((sum, count) => sum + count, 0) - part(verb, "refused"),
    execution: one.latency_micros, whole: one.end_to_end_micros,
  }));
  return tables.concat(lockstep, now.services.flatMap((service) => service.verbs.map(line(service.protocol))));
}

function showOverview(now, verbs, perSecond, total) {
  text("version", now.version);
  text("rate", perSecond === null ? NONE : rate(perSecond) + "/s");
  text("rate-note", count(total) + " since the start");
  const memory = now.memory;
  text("memory", bytes(memory.tables_bytes + memory.excess_bytes));
  text("memory-note", "of " + bytes(memory.tables_bytes_max) + (memory.excess_bytes > 0 ? ", " + bytes(memory.excess_bytes) + " garbage" : ""));
  text("elements", count(now.elements));
  text("elements-note", now.tables_count === 1 ? "in 1 table" : "in " + count(now.tables_count) + " tables");
  text("timers", count(now.expiry.pending));
  const lag = now.expiry.lag_micros;
  text("timers-note", now.expiry.expired === 0 ? "none has expired" : count(now.expiry.expired) + " expired, p99 " + micros(lag.p99) + " late");
  const clients = now.clients.known + now.services.reduce((sum, service) => sum + service.connections, 0) + now.changes.subscribers
    + (now.lockstep ? now.lockstep.connections + now.lockstep.subscribers : 0) + (now.feed ? now.feed.subscribers : 0);
  text("connections", count(clients));
  text("connections-note", now.clients.cut_off === 0 ? "none was cut off" : count(now.clients.cut_off) + " cut off");
  text("uptime", seconds(now.uptime_seconds));
  text("uptime-note", bytes(now.memory.resident_bytes || 0) + " resident");
}

function showVerbs(verbs, lastMinute) {
  const minute = new Map(lastMinute.map((line) => [line.protocol + " " + line.verb, line.end_to_end_micros]));
  const used = verbs.filter((line) => line.requests > 0).sort((one, other) => other.requests - one.requests);
  const rows = used.map((line) => {
    const known = before && before.verbs.get(line.protocol + " " + line.verb);
    const perSecond = known === undefined || known === null ? null : (line.requests - known) / before.elapsed;
    const recent = minute.get(line.protocol + " " + line.verb) || {};
    return [line.protocol, line.verb, rate(perSecond), count(line.requests), count(line.refused), micros(recent.p50), micros(recent.p99),
      micros(line.whole.p50), micros(line.whole.p99), micros(line.execution.p50), micros(line.execution.p99)];
  });
  show("verbs", [["protocol", "text"], ["verb", "text"], ["a second"], ["in all"], ["refused"], ["p50, last minute"], ["p99, last minute"],
    ["p50, since start"], ["p99, since start"], ["execution p50"], ["execution p99"]], rows, "No request has come since the start.");
}

function showTables(now) {
  const largest = now.tables.length > 0 ? now.tables[0].bytes : 0;
  text("tables-count", now.tables_count > now.tables.length ? "the " + now.tables.length + " largest of " + count(now.tables_count) : "");
  show("tables", [["table", "text name"], ["elements"], ["memory"], ["", "text"]],
    now.tables.map((table) => [visible(table.name), count(table.elements), bytes(table.bytes), share(table.bytes, largest)]),
    "There is no table. CREATE_TABLE makes one.");
}

function showQueues(now) {
  if (!now.tasks) {
    show("queues", [], [], "Tasks, jobs and events are off, or in a database. --tasks, --jobs and --events turn them on.");
    show("families", [], [], "");
    return;
  }
  text("queues-count", now.queues_count > now.tasks.queues.length ? "the first " + now.tasks.queues.length + " of " + count(now.queues_count) : "click a name to look into it");
  const queues = now.tasks.queues.map((queue) => [queueLink(queue.name), count(queue.ready), count(queue.delayed), count(queue.leased),
    count(queue.dead), count(queue.dropped), count(queue.groups), count(queue.waiting), seconds(queue.oldest_ready_seconds), count(queue.added),
    count(queue.done), count(queue.failed), count(queue.expired), count(queue.throttled)]);
  show("queues", [["queue", "text name"], ["ready"], ["delayed"], ["lent"], ["dead"], ["dropped"], ["groups"], ["waiting"], ["oldest ready"],
    ["added"], ["done"], ["failed"], ["expired"], ["throttled"]],
    queues, "There is no queue. A task, a job or an event makes one.");
  updateNear(now);
  // Each is a sum of many queues, which are not in the table above.
  show("families", [["all queues of", "text name"], ["queues"], ["ready"], ["delayed"], ["lent"], ["dead"], ["added"], ["done"], ["failed"], ["leases run out"]],
    now.tasks.families.map((family) => [visible(family.name) + "…", count(family.queues), count(family.ready), count(family.delayed),
      count(family.leased), count(family.dead), count(family.added), count(family.done), count(family.failed), count(family.ran_out)]), "");
}

function showSubscribers(now) {
  const rows = [["publish", now.changes, now.changes.published, now.changes.lost_notifications]];
  if (now.feed) rows.push(["feed", now.feed, now.feed.messages, now.feed.lost_messages]);
  if (now.lockstep) rows.push(["lockstep-publish", now.lockstep, now.lockstep.published, now.lockstep.lost_notifications]);
  show("subscribers", [["endpoint", "text"], ["subscribers"], ["subscriptions"], ["messages"], ["lost"], ["closed"]],
    rows.map(([name, line, sent, lost]) => [name, count(line.subscribers), count(line.subscriptions), count(sent), count(lost), count(line.closed_subscribers)]), "");
}

function showStore(now) {
  const rows = [];
  if (now.tasks) {
    const store = now.tasks.store;
    rows.push(["takes additions", store.refuses_adds ? "no: there is no room" : "yes"], ["live records", bytes(store.live_bytes)],
      ["to be cleaned", bytes(store.dead_bytes)], ["all files", bytes(store.disk_bytes)], ["free on the disk", bytes(store.free_bytes)],
      ["batches", count(store.batches)], ["syncs", count(now.tasks.syncs)], ["records set aside", count(store.set_aside)]);
  }
  if (now.events_database) {
    const line = now.events_database;
    rows.push(["database: events", count(line.events)], ["database: transactions", count(line.transactions)],
      ["database: tried again", count(line.retries)], ["database: answered 503", count(line.failures)]);
  }
  show("store", [["", "text"], [""]], rows, "Nothing is stored: tasks, jobs and events are off.");
}

function showSlow(now) {
  const slow = now.slow_log;
  text("slow-count", "longer than " + micros(slow.threshold_micros) + ": " + count(slow.seen) + " since the start");
  show("slow", [["time", "text"], ["took"], ["queue"], ["execution"], ["write"], ["protocol", "text"], ["verb", "text"],
    ["table or queue", "text name"], ["request"], ["reply"], ["client", "text"]],
    slow.requests.map((line) => [clockTime(line.unix_millis), micros(line.micros), micros(line.queue_micros), micros(line.execution_micros),
      micros(line.write_micros), line.protocol, line.verb, line.table === "" ? NONE : visible(line.table), bytes(line.request_bytes),
      line.reply_bytes > 0 ? bytes(line.reply_bytes) : NONE, line.client]),
    "No request was slow.");
}

// Adds the points of a message. The first message of a connection has all that the server keeps, and points from before
// a restart of the server stay.
function remember(added) {
  if (added.length === 0) return;
  const earlier = points.filter((point) => point.unix_millis < added[0].unix_millis);
  points = earlier.concat(added).slice(-KEPT);
  drawCharts(points);
}

function update(now) {
  const verbs = verbsOf(now);
  const total = verbs.reduce((sum, line) => sum + line.requests, 0);
  // After a restart all counts begin again.
  if (before && now.uptime_seconds <= before.uptime) before = null;
  if (before) before.elapsed = now.uptime_seconds - before.uptime;
  const perSecond = before ? (total - before.total) / before.elapsed : null;
  showOverview(now, verbs, perSecond, total);
  showVerbs(verbs, now.last_minute);
  showTables(now);
  showQueues(now);
  showSubscribers(now);
  showStore(now);
  showSlow(now);
  remember(now.points);
  before = { uptime: now.uptime_seconds, total, verbs: new Map(verbs.map((line) => [line.protocol + " " + line.verb, line.requests])) };
}

function say(state, isLive) {
  const place = document.getElementById("state");
  if (place.textContent !== state) place.textContent = state;
  place.className = isLive ? "live" : "waiting";
  document.body.classList.toggle("stale", !isLive);
}

function listen() {
  if (document.hidden || source !== null) return;
  const opened = source = new EventSource("events");
  opened.onmessage = (message) => {
    update(JSON.parse(message.data));
    say("live", true);
  };
  opened.onerror = () => {
    say("the server does not answer; trying again", false);
    // The browser asks again by itself, unless it was refused.
    if (opened.readyState === EventSource.CLOSED && source === opened) {
      source = null;
      setTimeout(listen, 2000);
    }
  };
}

function pause() {
  if (source !== null) source.close();
  source = null;
  // A rate is of the time in which the page was live.
  before = null;
  say("paused while hidden", false);
}

document.addEventListener("visibilitychange", () => { if (document.hidden) pause(); else listen(); });
listen();
