//! The endpoints of a running server, with the ports that the system chose.

use std::io::{self, Write};
use std::net::SocketAddr;

use super::RunningServer;

impl RunningServer {
    /// The endpoints for requests about tables, with the ports that the system chose.
    #[must_use]
    pub fn kv(&self) -> &[String] {
        &self.kv
    }

    /// The endpoint for notifications.
    #[must_use]
    pub fn publish(&self) -> Option<&str> {
        self.publish.as_deref()
    }

    /// The endpoint of the feed.
    #[must_use]
    pub fn feed(&self) -> Option<&str> {
        self.feed.as_deref()
    }

    /// The endpoint for requests in the lock-step dialect.
    #[must_use]
    pub fn lockstep(&self) -> Option<&str> {
        self.lockstep.as_deref()
    }

    /// The endpoint for notifications in the lock-step dialect.
    #[must_use]
    pub fn lockstep_publish(&self) -> Option<&str> {
        self.lockstep_publish.as_deref()
    }

    /// The endpoint for tasks.
    #[must_use]
    pub fn tasks(&self) -> Option<&str> {
        self.tasks.as_deref()
    }

    /// The address for jobs.
    #[must_use]
    pub fn jobs(&self) -> Option<SocketAddr> {
        self.jobs
    }

    /// The address for events.
    #[must_use]
    pub fn events(&self) -> Option<SocketAddr> {
        self.events
    }

    /// The endpoint of the queue of pending events, if events are in the store.
    #[must_use]
    pub fn events_queue(&self) -> Option<&str> {
        self.events_queue.as_deref()
    }

    /// The address of what an operator sees.
    #[must_use]
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }
}

/// Each bound endpoint on a line, after the name of what is served there.
pub(super) fn listening(running: &RunningServer) -> String {
    let mut text = String::new();
    for endpoint in running.kv() {
        text.push_str(&format!("kv {endpoint}\n"));
    }
    if let Some(endpoint) = running.publish() {
        text.push_str(&format!("publish {endpoint}\n"));
    }
    if let Some(endpoint) = running.feed() {
        text.push_str(&format!("feed {endpoint}\n"));
    }
    if let Some(endpoint) = running.lockstep() {
        text.push_str(&format!("lockstep {endpoint}\n"));
    }
    if let Some(endpoint) = running.lockstep_publish() {
        text.push_str(&format!("lockstep-publish {endpoint}\n"));
    }
    if let Some(endpoint) = running.tasks() {
        text.push_str(&format!("tasks {endpoint}\n"));
    }
    if let Some(address) = running.jobs() {
        text.push_str(&format!("jobs {address}\n"));
    }
    if let Some(address) = running.events() {
        text.push_str(&format!("events {address}\n"));
    }
    if let Some(endpoint) = running.events_queue() {
        text.push_str(&format!("events-queue {endpoint}\n"));
    }
    if let Some(address) = running.admin() {
        text.push_str(&format!("admin {address}\n"));
    }
    text
}

/// Prints each bound endpoint on a line of standard output, then `ready`.
pub(super) fn print_ready(running: &RunningServer) {
    let text = listening(running) + "ready\n";
    let mut out = io::stdout().lock();
    // The server also runs without a reader of its standard output.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
