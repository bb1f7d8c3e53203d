//! Tables for Redis clients: the protocol `resp`.
//!
//! A connection belongs to a native worker, which serves it beside those over ZeroMQ. One command:
//!
//! 1. `net/zeromq` receives bytes, and [`CommandCutter`](crate::resp3::CommandCutter) cuts them into commands.
//! 2. `NativeWorker` gives the connection a turn, and `RespWorker::answer_turn` (`turn.rs`) finds the row of each command
//!    (`commands.rs`) and fetches what it reads.
//! 3. `attempt` (`carry_out.rs`) decides whether this client may have it carried out. The handler of the row (`handle/`) does
//!    it, in the client's table (`client.rs`). Behind MULTI it is queued (`transaction.rs`) until EXEC (`exec.rs`).
//! 4. `Reply::encode` (`answer.rs`) appends the reply, and the connection sends the replies of the turn together.
//!
//! PUBLISH sends a message to the workers with subscribers (`channels.rs`), and counts those with matching patterns
//! (`pattern_index.rs`). The publisher of the tables sends changes to the workers (`services/tables/change_mail.rs`).
//! Between two turns `WorkerSubscribers::deliver` (`subscribers.rs`) appends both to the replies of those who subscribe.
//!
//! The database n is the table `n`, which its first write makes. This room opens no socket and starts no thread.
//!
#![doc = include_str!("PROTOCOL.md")]

mod answer;
mod appending;
mod arguments;
mod call;
mod carry_out;
mod channels;
mod client;
mod command_info;
mod commands;
mod context;
mod crc64;
mod decimal;
mod dump;
mod exec;
mod glob;
mod handle;
mod info;
mod key_events;
mod limits;
mod lzf;
mod metrics;
mod name_map;
mod needs;
mod pattern;
mod pattern_index;
mod permission;
mod push;
mod registry;
mod scripts;
mod serve;
mod settings;
mod subcommands;
mod subscribers;
mod subscriptions;
mod transaction;
mod turn;
mod walk;

pub use client::RespClient;
pub use serve::RespConfig;
pub(crate) use serve::{RespService, RespShared, service_metrics};
pub(crate) use turn::prefetch_first;
