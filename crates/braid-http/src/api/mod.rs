//! REST API of a broker, its metrics and events, and the pages that use them.
//!
//! All of it goes through [`Handle`], [`Control`] and an authenticator: the API sees nothing of a broker that another
//! program in the same process could not see. Nothing runs while no client asks.

#![allow(
    unused_qualifications,
    reason = "macros of utoipa write whole paths of the types that they are given"
)]

mod auth;
mod autoquic;
mod bans;
mod budget;
mod caller;
mod clients;
mod control;
mod document;
mod event_streams;
mod events;
mod extract;
mod last_messages;
mod limit;
mod login_limits;
mod metrics;
mod pages;
mod publish;
mod rates;
mod retained;
mod rules;
mod sse;
mod streams;
mod subscriptions;
mod system;
mod time;
mod topics;
mod unsent;
mod users;
mod verify;

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use braid_broker::{Authenticate, Handle};
use tokio::sync::watch;
use tokio::time::timeout;

pub use self::auth::Roles;
pub use self::control::{
    Control, ControlError, ControlErrorKind, Priority, RulesAction, RulesAnswer, RulesQuestion, RulesText,
    User,
};
pub use self::event_streams::EventStreamLimits;
pub(crate) use self::pages::fallback;

use self::auth::Login;
use self::budget::Queries;
use self::caller::{Admitted, Caller};
use self::event_streams::EventStreams;
use self::extract::Refused;
use self::last_messages::LastMessages;
use self::limit::RequestRate;
use self::rates::RateSampler;
use self::unsent::UnsentAnswers;
use crate::autoquic::AutoQuic;
use crate::counters::{FrontCounters, FrontRefusal};
use crate::network::of_host;
use crate::request::method_not_allowed;

/// Time for requests in flight when the broker has ended.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// Options of the API.
pub struct ApiOptions {
    /// Configuration, users, rules and reload of the process.
    pub control: Arc<dyn Control>,
    /// Authenticator of users; `None` if the broker has none.
    pub authenticate: Option<Arc<dyn Authenticate>>,
    /// Reason why clients of this machine are no operators of a broker without authenticators; `None` if they are,
    /// unless a proxy speaks for them.
    pub refuses_anonymous: Option<&'static str>,
    /// Users that may read, and those that may change something.
    pub roles: Roles,
    /// Requests of one address in a second; ten times as many may come at once.
    pub requests_per_sec: u32,
    /// Limits of event streams.
    pub event_streams: EventStreamLimits,
    /// Policy of the automatic upgrade; `None` without HTTP/3.
    pub autoquic: Option<AutoQuic>,
    /// Counters of the server that serves it.
    pub front: FrontCounters,
    /// `limits.memory_low` of the broker.
    pub memory_low_bytes: u64,
    /// `limits.memory_high` of the broker.
    pub memory_high_bytes: u64,
}

/// REST API. Cheap to clone; before [`Api::serving`] and after [`Api::ended`] it answers 503.
#[derive(Clone)]
pub struct Api(Arc<Shared>);

/// State that all requests share.
struct Shared {
    control: Arc<dyn Control>,
    login: Login,
    load: Load,
    autoquic: Option<AutoQuic>,
    front: FrontCounters,
    memory_marks: (u64, u64),
    began: Instant,
    rates: Mutex<RateSampler>,
    last_messages: LastMessages,
    broker: watch::Sender<Option<Lease>>,
    /// Receivers are those of leases.
    leases: watch::Sender<()>,
}

/// Bounds of what clients may ask for.
struct Load {
    requests: RequestRate<IpAddr>,
    /// Queries that visit many entries.
    queries: Queries,
    event_streams: EventStreams,
    unsent: UnsentAnswers,
}

/// Use of the broker by a request, which [`Api::ended`] waits for.
#[derive(Clone)]
struct Lease {
    handle: Handle,
    _lease: watch::Receiver<()>,
}

impl Deref for Lease {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Api {
    /// API of a broker that does not run yet.
    #[must_use]
    pub fn new(options: ApiOptions) -> Self {
        Self(Arc::new(Shared {
            control: options.control,
            login: Login::new(options.authenticate, options.refuses_anonymous, options.roles),
            load: Load {
                requests: RequestRate::new(
                    options.requests_per_sec,
                    options.requests_per_sec.saturating_mul(10),
                ),
                queries: Queries::default(),
                event_streams: EventStreams::new(options.event_streams),
                unsent: UnsentAnswers::default(),
            },
            autoquic: options.autoquic,
            front: options.front,
            memory_marks: (options.memory_low_bytes, options.memory_high_bytes),
            began: Instant::now(),
            rates: Mutex::default(),
            last_messages: LastMessages::default(),
            broker: watch::Sender::new(None),
            leases: watch::Sender::new(()),
        }))
    }

    /// Answers from this broker from now on.
    pub fn serving(&self, handle: Handle) {
        self.0.broker.send_replace(Some(Lease { handle, _lease: self.0.leases.subscribe() }));
    }

    /// Ends event streams, and lets go of the broker so that its store can be closed: waits for requests in flight, but
    /// not for long.
    pub async fn ended(&self) {
        self.0.broker.send_replace(None);
        self.0.last_messages.forget();
        let _ = timeout(LAST_REQUESTS, self.0.leases.closed()).await;
    }

    /// Forgets which credentials were right lately, after users or keys have changed.
    pub fn forget_logins(&self) {
        self.0.login.forget();
    }

    /// Routes of the API, `/metrics` and the page at `/api/`.
    pub(crate) fn router(&self) -> Router {
        document::routes()
            .route("/metrics", axum::routing::get(metrics::read))
            .layer(from_fn_with_state(self.clone(), guard))
            .with_state(self.clone())
            .merge(pages::router())
            .method_not_allowed_fallback(method_not_allowed)
    }

    fn handle(&self) -> Result<Lease, Refused> {
        let lease = self.0.broker.borrow().clone();
        lease.ok_or_else(|| {
            Refused::new(StatusCode::SERVICE_UNAVAILABLE, "the broker starts or stops; ask again")
        })
    }

    /// Runs a function that reads or writes files.
    async fn control<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Control) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, Refused> {
        let control = Arc::clone(&self.0.control);
        match tokio::task::spawn_blocking(move || call(&*control)).await {
            Ok(outcome) => Ok(outcome?),
            Err(_) => {
                Err(Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed inside the broker"))
            }
        }
    }

    /// Runs a function that changes users or keys, and forgets which credentials were right.
    async fn change<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Control) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, Refused> {
        let changed = self.control(call).await?;
        self.forget_logins();
        Ok(changed)
    }

    /// Checks rate, credentials, bans and role of a request.
    async fn admit(&self, request: &mut Parts) -> Result<(), Refused> {
        let caller = Caller::of(request)?;
        self.0.load.requests.take(of_host(caller.client.address.ip())).map_err(|wait| {
            self.0.front.count(FrontRefusal::Rate);
            Refused::too_many(wait)
        })?;
        let principal = self.verify(&caller).await?;
        let is_read = is_read(&request.method, request.uri.path());
        if !is_read && !principal.is_operator() {
            return Err(Refused::new(
                StatusCode::FORBIDDEN,
                "a viewer may only read: name the user in http.operators",
            ));
        }
        if !is_read {
            let (user, path) = (principal.user(), request.uri.path());
            tracing::info!(?user, from = %caller.client.address, method = %request.method, path, "command over HTTP");
        }
        let user = principal.user().map(Arc::from);
        request.extensions.insert(Admitted { caller, user });
        Ok(())
    }
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

/// Tests whether a request changes nothing, so that viewers may send it: by its method, or as a question with a body.
fn is_read(method: &Method, path: &str) -> bool {
    matches!(*method, Method::GET | Method::HEAD) || (*method == Method::POST && path == rules::TEST_PATH)
}

/// Middleware of every route.
async fn guard(State(api): State<Api>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let outcome = async {
        api.admit(&mut parts).await?;
        let address = Admitted::of(&parts)?.caller.client.address.ip();
        // The outcome of a command is told in any case, and in few bytes; so are the metrics.
        let path = parts.uri.path();
        let is_question = is_read(&parts.method, path) && path != "/metrics";
        let response = next.run(Request::from_parts(parts, body)).await;
        if !is_question {
            return Ok(response);
        }
        api.0.load.unsent.count(address, response, &api.0.front).await
    };
    outcome.await.unwrap_or_else(|refused: Refused| refused.into_response())
}

/// Text of an address, without the port where it says nothing.
fn address_text(address: SocketAddr) -> String {
    SocketAddr::new(address.ip().to_canonical(), address.port()).to_string()
}
