//! What an operator sees, over HTTP: whether the server lives and can store, its metrics, and its queues.
//!
//! Every file of this folder lists the paths in this order:
//!
//! ```text
//! GET /health    it answers                     GET /stats     all metrics as JSON
//! GET /ready     every store can store          GET /metrics   all metrics for Prometheus
//! GET /          the page                       GET /slow      the slow log
//! GET /events    what the page shows, live    …    /queues…   queues of tasks and jobs, and their changes
//! ```
//! [`serve`] accepts connections on the skeleton of `net/tcp`, and `net/http` reads their requests. The
//! routes read the metrics of the other rooms (`sources`), which their threads write without waiting for a reader.
//! `page` has the page, and `live` sends it its metrics. `history` keeps the last ten minutes. `probe` has a store tried, and `metrics` writes the exposition format.
//!
//! This module changes nothing, but for the record of a probe, and what `queues` has changed. It makes no thread of another
//! room wait.
//!
#![doc = include_str!("ADMIN.md")]

mod history;
mod limits;
mod live;
mod metrics;
mod page;
mod probe;
pub(crate) mod queues;
mod replies;
mod routes;
pub mod serve;
mod sources;

pub use probe::StoreProber;
