//! The queues of tasks and of jobs, as an operator sees and changes them.
//!
//! ```text
//! GET  /queues       all or one, with figures     POST /queues/kick        dead or delayed tasks are ready again
//! GET  /queues/peek  tasks in a state, a page     POST /queues/purge       tasks are gone for good
//!                                                 POST /queues/configure   settings, and a pause
//! ```
//! The engine is asked as by a client of spiderq, so both have the same rules and words. With users each request needs the
//! access to its queue that the same request needs there.
//!
//! **A page of another site changes nothing.** `net/http` refuses a POST whose `Origin` or `Sec-Fetch-Site` is foreign, and
//! a name that may be that of a foreign page. A change also needs a header ([`CHANGE`]), for which a browser would first
//! ask this server: it never agrees.
//!
//! This module does not know how a queue works; see `tasks`.

pub(crate) mod document;
mod query;
pub(crate) mod words;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::limits::{QUEUE_REQUESTS_MAX, QUEUES_PAGE_MAX, TASKS_PAGE_MAX};
use super::replies::{refused, uncached};
use crate::net::http::{HttpRefusal, json_response, permitted};
use crate::net::tcp::{AnswerReceiver, FailureSender, QueueRequests, Unanswered};
use crate::security::{Access, Identity, Resource};
use crate::services::jobs::wire::JobId;
use crate::services::tasks::calls::{NamedQueues, TaskCall, reply};
use crate::services::tasks::handle;
use crate::services::tasks::wire::{AnyReply, AnyRequest, Counters, Kicked, QueueReply, QueueRequest, Verb};
use crate::tasks::{QueueChange, Tasks};
use document::{queue_json, task_json};
use query::Parameters;
pub(crate) use query::parameter;
use words::{WorkFamily, place_text, read_millis, read_place, read_setting, read_state, read_states};

/// The header of each request that changes something, whatever its value.
pub(crate) const CHANGE: &str = "x-spindle-change";

/// The queues that are served, before the service runs.
pub struct ServedQueues {
    /// The handle to them.
    pub tasks: Tasks,
    /// Those of `--tasks`, if it is on.
    pub of_tasks: Option<NamedQueues>,
    /// Those of `--jobs`, if it is on.
    pub of_jobs: Option<NamedQueues>,
}

/// The queues, for the routes. Clones are the same.
#[derive(Clone)]
pub(super) struct AdminQueues {
    requests: QueueRequests,
    of_tasks: Option<NamedQueues>,
    of_jobs: Option<NamedQueues>,
    failed: FailureSender,
}

impl AdminQueues {
    /// Their answers come to this receiver.
    pub(super) fn new(served: ServedQueues, answers: &AnswerReceiver, failed: FailureSender) -> Self {
        let ServedQueues { tasks, of_tasks, of_jobs } = served;
        let requests = QueueRequests::new(tasks, answers.sink, answers.room.clone(), QUEUE_REQUESTS_MAX);
        Self { requests, of_tasks, of_jobs, failed }
    }

    /// The requests that wait.
    pub(super) fn requests(&self) -> &QueueRequests {
        &self.requests
    }

    fn of(&self, family: WorkFamily) -> Option<&NamedQueues> {
        match family {
            WorkFamily::Tasks => self.of_tasks.as_ref(),
            WorkFamily::Jobs => self.of_jobs.as_ref(),
        }
    }

    /// Has a request carried out. `read` sees the reply, which is one to `verb`.
    async fn ask<T>(
        &self,
        call: TaskCall,
        verb: Verb,
        read: impl FnOnce(QueueReply<'_>) -> Option<T>,
    ) -> Result<T, QueueRefusal> {
        let answer = self.requests.submit(call.queue, call.request).await.map_err(QueueRefusal::Unanswered)?;
        let outcome = self.requests.read(answer).await.map_err(|error| {
            // The send fails if the server is ending already.
            let _ending = self.failed.send(error);
            QueueRefusal::Unanswered(Unanswered::Gone)
        })?;
        match reply(verb, &outcome, || Counters::Eight([0; 8])) {
            AnyReply::OfQueues(reply) => read(reply).ok_or(QueueRefusal::NoRoom),
            AnyReply::Plain(_) => Err(QueueRefusal::NoRoom),
        }
    }
}

/// Why a request about queues is not carried out.
enum QueueRefusal {
    /// It is malformed, in this way.
    Wrong(String),
    /// The server does not serve these queues.
    Off(WorkFamily),
    /// The user may not do this.
    Denied(HttpRefusal),
    /// It changes something, and has no header that says so.
    Unmarked,
    /// There is no answer.
    Unanswered(Unanswered),
    /// There are too many queues.
    NoRoom,
}

impl From<String> for QueueRefusal {
    fn from(wrong: String) -> Self {
        Self::Wrong(wrong)
    }
}

impl IntoResponse for QueueRefusal {
    fn into_response(self) -> Response {
        match self {
            Self::Wrong(why) => refused(400, &why),
            Self::Off(family) => {
                let word = family.word();
                refused(404, &format!("the server serves no {word}: start it with --{word}"))
            }
            Self::Denied(refusal) => refusal.into_response(),
            Self::Unmarked => {
                refused(403, "a request that changes queues has the header X-Spindle-Change, with any value")
            }
            Self::Unanswered(Unanswered::Full) => {
                refused(503, "too many requests wait for the queues: ask again later")
            }
            Self::Unanswered(Unanswered::Gone) => refused(503, "the store has failed, and the server ends"),
            Self::NoRoom => refused(
                503,
                "the server has no room for another queue: make room on its disk, or empty queues, since those go that have neither a task nor a setting",
            ),
        }
    }
}

/// Adds the paths of queues to those of the service.
pub(super) fn with_queues<S: Clone + Send + Sync + 'static>(
    routes: Router<S>,
    queues: Option<AdminQueues>,
) -> Router<S> {
    let of_queues = Router::new()
        .route("/queues", get(list))
        .route("/queues/peek", get(peek))
        .route("/queues/kick", post(kick))
        .route("/queues/purge", post(purge))
        .route("/queues/configure", post(configure))
        .with_state(queues);
    routes.merge(of_queues)
}

/// Whether a path is about queues: its route looks at the permissions of the user.
pub(super) fn is_of_queues(path: &str) -> bool {
    path == "/queues" || path.starts_with("/queues/")
}

/// The queues, as the routes take them. None: the server has neither tasks nor jobs.
type Served = State<Option<AdminQueues>>;

/// A request about the queues of one family, whose user has been looked at.
struct QueueAsk<'c> {
    queues: &'c AdminQueues,
    family: WorkFamily,
    parameters: Parameters,
    user: Option<Identity>,
}

impl<'c> QueueAsk<'c> {
    /// Reads a request with these parameters, beside that of the family.
    fn read(served: &'c Option<AdminQueues>, request: &Request, known: &[&str]) -> Result<Self, QueueRefusal> {
        let uri: &Uri = request.uri();
        let parameters = Parameters::read(uri.query(), &[&["family"], known].concat())?;
        let family = parameters.text("family")?.and_then(WorkFamily::of_word);
        let family = family.ok_or_else(|| "family is tasks or jobs".to_owned())?;
        let queues = served.as_ref().ok_or(QueueRefusal::Off(family))?;
        Ok(Self { queues, family, parameters, user: request.extensions().get().cloned() })
    }

    /// Reads a request that changes something.
    fn of_change(served: &'c Option<AdminQueues>, request: &Request, known: &[&str]) -> Result<Self, QueueRefusal> {
        if !request.headers().contains_key(CHANGE) {
            return Err(QueueRefusal::Unmarked);
        }
        Self::read(served, request, known)
    }

    fn resource<'q>(&self, queue: &'q [u8]) -> Resource<'q> {
        match self.family {
            WorkFamily::Tasks => Resource::TaskQueue(queue),
            WorkFamily::Jobs => Resource::JobQueue(queue),
        }
    }

    /// The name of the queue, which the user may use so.
    fn queue(&self, access: Access) -> Result<&[u8], QueueRefusal> {
        let name = self.parameters.bytes("queue").unwrap_or_default();
        if !(1..=usize::from(u8::MAX)).contains(&name.len()) {
            return Err(QueueRefusal::Wrong("queue is a name of 1 to 255 bytes".to_owned()));
        }
        if let Some(user) = &self.user {
            permitted(user, access, self.resource(name)).map_err(QueueRefusal::Denied)?;
        }
        Ok(name)
    }

    async fn ask<T>(
        &self,
        request: QueueRequest<'_>,
        read: impl FnOnce(QueueReply<'_>) -> Option<T>,
    ) -> Result<T, QueueRefusal> {
        let request = AnyRequest::OfQueues(request);
        // All operators are one client.
        let call = self.named()?.call(handle::Access::Full, 0, &request);
        self.queues.ask(call, request.verb(), read).await
    }

    /// The queues of the family.
    fn named(&self) -> Result<&NamedQueues, QueueRefusal> {
        self.queues.of(self.family).ok_or(QueueRefusal::Off(self.family))
    }
}

fn document(json: &Value) -> Response {
    uncached(json_response(200, json.to_string()))
}

async fn list(State(served): Served, request: Request) -> Result<Response, QueueRefusal> {
    let ask = QueueAsk::read(&served, &request, &["queue", "from", "most"])?;
    let one = ask.parameters.bytes("queue").map(|_| ask.queue(Access::Read)).transpose()?;
    let (from, most) = (ask.parameters.number("from", 0)?, ask.parameters.number("most", QUEUES_PAGE_MAX)?);
    let page = |reply: QueueReply<'_>| match reply {
        QueueReply::Queues(queues, next) => {
            let may_see = |name: &[u8]| ask.user.as_ref().is_none_or(|user| user.may(Access::Read, ask.resource(name)));
            let seen = queues.iter().filter(|queue| may_see(queue.name));
            let queues: Vec<Value> = seen.map(|queue| queue_json(ask.family, queue)).collect();
            Some(json!({ "queues": queues, "next": next }))
        }
        _ => None,
    };
    let page = match one {
        Some(queue) => ask.queues.ask(ask.named()?.show(queue), Verb::Queues, page).await?,
        None => ask.ask(QueueRequest::Queues { from, most: most.min(QUEUES_PAGE_MAX) }, page).await?,
    };
    Ok(document(&page))
}

async fn peek(State(served): Served, request: Request) -> Result<Response, QueueRefusal> {
    let ask = QueueAsk::read(&served, &request, &["queue", "state", "group", "from", "most", "bytes"])?;
    let (queue, parameters) = (ask.queue(Access::Read)?, &ask.parameters);
    let state = parameters.text("state")?.and_then(read_state);
    let state = state.ok_or_else(|| "state is ready, delayed, lent, dead or dropped".to_owned())?;
    let from =
        parameters.text("from")?.map(|text| read_place(text).ok_or("from is the next of the page before".to_owned()));
    let request = QueueRequest::Browse {
        queue,
        state,
        group: parameters.bytes("group"),
        from: from.transpose()?.unwrap_or_default(),
        most: parameters.number("most", TASKS_PAGE_MAX)?.min(TASKS_PAGE_MAX),
        first_bytes: parameters.number("bytes", 64)?,
    };
    let page = ask.ask(request, |reply| match reply {
        QueueReply::Browsed(tasks, next) => {
            let tasks: Vec<Value> = tasks.iter().map(|task| task_json(ask.family, state, task)).collect();
            Some(json!({ "tasks": tasks, "next": next.map(place_text) }))
        }
        _ => None,
    });
    Ok(document(&page.await?))
}

async fn kick(State(served): Served, request: Request) -> Result<Response, QueueRefusal> {
    let ask = QueueAsk::of_change(&served, &request, &["queue", "key", "id", "state", "most"])?;
    let (queue, parameters) = (ask.queue(Access::Write)?, &ask.parameters);
    let most = parameters.number("most", u64::MAX)?;
    let id = parameters.text("id")?.map(job_key).transpose()?;
    let what = match (ask.family, parameters.bytes("key"), &id, parameters.text("state")?) {
        (WorkFamily::Tasks, Some(key), None, None) => Kicked::One(key),
        (WorkFamily::Jobs, None, Some(id), None) => Kicked::One(id),
        (_, None, None, Some("dead")) => Kicked::Dead(most),
        (_, None, None, Some("delayed")) => Kicked::Delayed(most),
        _ => {
            let wrong = "kick the key of a task, the id of a job, or the state dead or delayed";
            return Err(QueueRefusal::Wrong(wrong.to_owned()));
        }
    };
    let kicked = ask.ask(QueueRequest::Kick { queue, what }, counted).await?;
    Ok(document(&json!({ "kicked": kicked })))
}

/// The key of the job with this id.
fn job_key(id: &str) -> Result<[u8; 8], String> {
    let id = JobId::read(id.as_bytes());
    id.map(|JobId(number)| number.to_be_bytes()).ok_or_else(|| "an id has 20 digits, as it was printed".to_owned())
}

async fn purge(State(served): Served, request: Request) -> Result<Response, QueueRefusal> {
    let ask = QueueAsk::of_change(&served, &request, &["queue", "states", "older"])?;
    let (queue, parameters) = (ask.queue(Access::Admin)?, &ask.parameters);
    let states = parameters.text("states")?.and_then(read_states);
    let states = states.ok_or_else(|| "states are ready, delayed, dead and dropped, with commas between".to_owned())?;
    let age = parameters.text("older")?.map(|time| read_millis(time).ok_or("older is a time as in 7d".to_owned()));
    let age_ms = age.transpose()?.unwrap_or(0);
    let removed = ask.ask(QueueRequest::Purge { queue, states, age_ms }, counted).await?;
    Ok(document(&json!({ "removed": removed })))
}

/// The settings, in the order in which they are read.
const SETTINGS: [&str; 6] = ["tries", "backoff", "group-limit", "rate", "sync", "pause"];

async fn configure(State(served): Served, request: Request) -> Result<Response, QueueRefusal> {
    let ask = QueueAsk::of_change(&served, &request, &[&["queue"], &SETTINGS[..]].concat())?;
    let queue = ask.queue(Access::Admin)?;
    let mut change = QueueChange::default();
    for name in SETTINGS {
        if let Some(value) = ask.parameters.text(name)? {
            read_setting(&mut change, name, value).map_err(|why| format!("{name}: {why}"))?;
        }
    }
    if change == QueueChange::default() {
        return Err(QueueRefusal::Wrong(format!("no setting is named: there are {}", SETTINGS.join(", "))));
    }
    if change.sync.is_some() && ask.family == WorkFamily::Jobs {
        return Err(QueueRefusal::Wrong("jobs are on disk before they are answered: they have no sync".to_owned()));
    }
    ask.ask(QueueRequest::Configure { queue, change }, |reply| (reply == QueueReply::Configured).then_some(())).await?;
    Ok(document(&json!({ "ok": true })))
}

fn counted(reply: QueueReply<'_>) -> Option<u64> {
    if let QueueReply::Counted(_, count) = reply { Some(count) } else { None }
}
