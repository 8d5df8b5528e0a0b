//! `braidmq acl test`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use braid_access::AclFormat;
use braid_auth::acl::{self, Acl, Action, Decision, Subject};
use braid_proto::topic::{TopicFilter, TopicName};
use clap::ValueEnum;

use super::list::{self, List};
use super::{DENIED, print};
use crate::printable::printable;

/// Ask whether a client may do something, and which line decides
///
/// Prints `allowed` or `denied`, and the line of the file that decides. For a filter that is denied, prints a topic
/// that the rules do not permit.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The access control list [default: `acl.file` of the configuration]
    #[arg(long, value_name = "FILE")]
    acl: Option<PathBuf>,
    /// Format of the list [default: braidmq, or `acl.format` of the configuration]
    #[arg(long, value_parser = list::formats(), requires = "acl")]
    format: Option<AclFormat>,
    /// The broker's configuration, to find the list; environment variables count as for `braidmq serve`
    #[arg(long, value_name = "FILE", env = "BRAIDMQ_CONFIG")]
    config: Option<PathBuf>,
    /// Rules of this client alone, as of its token; they come before the list
    #[arg(long, value_name = "FILE")]
    own_rules: Option<PathBuf>,
    #[command(flatten)]
    client: Client,
    /// The action: prioritize is to ask for a priority above the usual one
    #[arg(value_enum)]
    action: ActionName,
    /// A topic; for subscribe and prioritize also a filter, such as a/#
    #[arg(value_name = "TOPIC_OR_FILTER")]
    topic: String,
}

/// Client that acts.
#[derive(clap::Args, Debug)]
struct Client {
    /// User name [default: an anonymous client]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Client Identifier
    #[arg(long, value_name = "ID")]
    client: String,
    /// Group of the user, beside those of the list; repeatable
    #[arg(long = "group", value_name = "NAME")]
    groups: Vec<String>,
    /// Tag of the listener
    #[arg(long, value_name = "TAG")]
    listener: Option<String>,
    /// IP address of the client
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
}

const HELP: &str = "\
Examples:
  braidmq acl test --acl rules.acl --user jane --client c1 publish home/lamp
  braidmq acl test --acl rules.acl --client c1 --address 10.0.0.7 subscribe 'home/#'
  braidmq acl test --acl old.acl --format mosquitto --user jane --client c1 receive home/lamp

Exit codes: 0 allowed, 1 denied, 2 no answer";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ActionName {
    Publish,
    Subscribe,
    Receive,
    Prioritize,
}

impl From<ActionName> for Action {
    fn from(name: ActionName) -> Self {
        match name {
            ActionName::Publish => Self::Publish,
            ActionName::Subscribe => Self::Subscribe,
            ActionName::Receive => Self::Receive,
            ActionName::Prioritize => Self::Prioritize,
        }
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let action = Action::from(args.action);
    let request = Request::parse(action, &args.topic)?;
    let mut lists = Vec::new();
    lists.extend(args.own_rules.as_deref().map(List::read_own).transpose()?);
    lists.push(read_list(args)?);
    let groups: Vec<_> = args.client.groups.iter().map(String::as_str).collect();
    let subject = Subject {
        user: args.client.user.as_deref(),
        client_id: &args.client.client,
        groups: &groups,
        listener: args.client.listener.as_deref(),
        address: args.client.address,
    };
    let asked = Question { lists: &lists, subject, action };
    let (allowed, reason) = asked.answer(&request);
    let answer = if allowed { "allowed" } else { "denied" };
    let text = format!("{answer}: {} {}\n{reason}", action.name(), args.topic);
    print(&text.lines().map(|line| format!("{}\n", printable(line))).collect::<String>())?;
    Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::from(DENIED) })
}

fn read_list(args: &Args) -> Result<List, String> {
    if let Some(path) = &args.acl {
        return List::read(path, args.format.unwrap_or_default());
    }
    match (list::configured(args.config.as_deref())?, &args.config) {
        (Some((path, format)), _) => List::read(&path, format),
        (None, Some(config)) => {
            Err(format!("{} has no key `acl.file`: name the list with --acl FILE", config.display()))
        }
        (None, None) => {
            Err("no access control list: name it with --acl FILE, or the broker's --config FILE".to_owned())
        }
    }
}

/// Topic or filter of an action.
enum Request {
    Topic(TopicName),
    Filter(TopicFilter),
}

impl Request {
    fn parse(action: Action, text: &str) -> Result<Self, String> {
        let parsed = match action {
            Action::Publish | Action::Receive => TopicName::parse(text).map(Self::Topic),
            Action::Subscribe | Action::Prioritize => TopicFilter::parse(text).map(Self::Filter),
        };
        parsed.map_err(|error| format!("cannot {} {text}: {error}", action.name()))
    }
}

/// Question about an action of a client.
struct Question<'a> {
    lists: &'a [List],
    subject: Subject<'a>,
    action: Action,
}

impl Question<'_> {
    /// Answer, and the lines that explain it.
    fn answer(&self, request: &Request) -> (bool, String) {
        let lists: Vec<&Acl> = self.lists.iter().map(|list| &list.acl).collect();
        let (decision, advice) = match request {
            Request::Topic(topic)
                if self.action == Action::Publish && acl::is_broker_topic(topic.as_str()) =>
            {
                let level = acl::BROKER_LEVEL;
                return (
                    false,
                    format!("{level} and topics below it are the broker's: no rule permits PUBLISH"),
                );
            }
            Request::Topic(topic) => (acl::decide(&lists, &self.subject, self.action, topic), None),
            Request::Filter(filter) => {
                let decision = acl::decide_filter(&lists, &self.subject, self.action, filter);
                (decision, Some(filter).filter(|filter| filter.has_wildcard()))
            }
        };
        let mut reason = self.quote(decision);
        if let Some(filter) = advice.filter(|_| !decision.allowed) {
            reason = format!("{reason}\n{}", self.explain(&lists, filter, decision));
        }
        (decision.allowed, reason)
    }

    /// Line that decided.
    fn quote(&self, decision: Decision) -> String {
        match (decision.line, self.lists.get(decision.list)) {
            (Some(line), Some(list)) => list.quote(line.get()),
            _ => {
                let names: Vec<_> = self.lists.iter().map(List::name).collect();
                format!("{}: no rule of this client matches, which denies", names.join(", "))
            }
        }
    }

    /// Part of a filter with wildcards that is not permitted.
    fn explain(&self, lists: &[&Acl], filter: &TopicFilter, decision: Decision) -> String {
        let is_denied = |topic: &TopicName| !acl::decide(lists, &self.subject, self.action, topic).allowed;
        let uncovered = self.examples(filter).into_iter().find(is_denied);
        match (decision.line, uncovered) {
            (Some(_), _) => "this rule denies topics that the filter matches".to_owned(),
            (None, Some(topic)) => format!("not permitted, for example: {topic}"),
            (None, None) => {
                "several rules permit parts of the filter: write one that permits all of it".to_owned()
            }
        }
    }

    /// Topics that a filter matches, with levels that the lists do not mention.
    fn examples(&self, filter: &TopicFilter) -> Vec<TopicName> {
        let levels: Vec<_> = self.lists.iter().map(List::unmentioned_level).collect();
        let other = levels.into_iter().max_by_key(String::len).unwrap_or_default();
        let pattern = filter.pattern();
        let texts = match pattern.strip_suffix('#') {
            Some(parent) => vec![
                format!("{parent}{other}"),
                format!("{parent}{other}/{other}"),
                parent.trim_end_matches('/').to_owned(),
            ],
            None => vec![pattern.to_owned()],
        };
        let fill = |text: &String| {
            let levels = text.split('/').map(|level| if level == "+" { other.as_str() } else { level });
            TopicName::parse(&levels.collect::<Vec<_>>().join("/")).ok()
        };
        texts.iter().filter_map(fill).collect()
    }
}
