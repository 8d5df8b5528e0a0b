//! Mountpoints: the topic name space of a tenant, as a prefix of the topics of the server.

use std::sync::Arc;

use thiserror::Error;

use super::{TopicError, TopicFilter, TopicName};

/// First level of the topics of tenants that begin with `$`. A topic of its own, because `#` of a tenant must not match
/// them. [MQTT-4.7.2-1]
const DOLLAR_ROOT: &str = "$mount/";

/// Prefix of the topics of a tenant, as `acme/`. Cloning shares the text.
///
/// A topic `a/b` of the tenant is `acme/a/b` on the server, and `$a/b` is `$mount/acme/$a/b`. Filters are mapped alike,
/// with their Share Name in front. The mapping loses nothing, and a filter of the tenant matches a topic of the tenant
/// if and only if it matched before the mapping.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Mountpoint {
    /// [`DOLLAR_ROOT`] and the text.
    prefix: Arc<str>,
}

/// Reason why a text is no [`Mountpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MountpointError {
    /// Empty text.
    #[error("a mountpoint must not be empty")]
    Empty,
    /// No `/` at the end.
    #[error("a mountpoint must end with '/'")]
    End,
    /// `$` at the beginning.
    #[error("a mountpoint must not begin with '$'")]
    Dollar,
    /// Wildcard.
    #[error("a mountpoint must not contain the wildcards '+' or '#'")]
    Wildcard,
    /// U+0000.
    #[error("a mountpoint must not contain U+0000")]
    Null,
    /// More than [`Mountpoint::MAX`] bytes.
    #[error("a mountpoint must not be longer than {} bytes", Mountpoint::MAX)]
    TooLong,
}

impl Mountpoint {
    /// Maximum length in bytes.
    pub const MAX: usize = 1024;

    /// Parses a mountpoint.
    ///
    /// # Errors
    /// A [`MountpointError`] for the rule that the text breaks.
    pub fn parse(text: &str) -> Result<Self, MountpointError> {
        if text.is_empty() {
            return Err(MountpointError::Empty);
        }
        if text.len() > Self::MAX {
            return Err(MountpointError::TooLong);
        }
        if text.starts_with('$') {
            return Err(MountpointError::Dollar);
        }
        if text.contains(['+', '#']) {
            return Err(MountpointError::Wildcard);
        }
        if text.contains('\0') {
            return Err(MountpointError::Null);
        }
        if !text.ends_with('/') {
            return Err(MountpointError::End);
        }
        Ok(Self { prefix: format!("{DOLLAR_ROOT}{text}").into() })
    }

    /// Text of the mountpoint, as `acme/`.
    pub fn as_str(&self) -> &str {
        &self.prefix[DOLLAR_ROOT.len()..]
    }

    /// Prefix of a topic or pattern of the tenant.
    fn prefix_of(&self, own: &str) -> &str {
        if own.starts_with('$') { &self.prefix } else { self.as_str() }
    }

    /// Topic of the server for a topic of the tenant.
    ///
    /// # Errors
    /// The mounted topic would be too long, or have too many levels.
    pub fn mount_name(&self, own: &TopicName) -> Result<TopicName, TopicError> {
        let own = own.as_str();
        TopicName::parse(&[self.prefix_of(own), own].concat())
    }

    /// Filter of the server for a filter of the tenant.
    ///
    /// # Errors
    /// The mounted filter would be too long, or have too many levels.
    pub fn mount_filter(&self, own: &TopicFilter) -> Result<TopicFilter, TopicError> {
        let (share, pattern) = own.as_str().split_at(own.as_str().len() - own.pattern().len());
        TopicFilter::parse(&[share, self.prefix_of(pattern), pattern].concat())
    }

    /// Topic of the tenant for a topic of the server; `None` if the tenant has no such topic.
    pub fn own_name<'a>(&self, name: &'a TopicName) -> Option<&'a str> {
        self.strip(name.as_str())
    }

    /// Filter of the tenant for a filter of the server; `None` if it is not of [`Mountpoint::mount_filter`].
    pub fn own_filter(&self, filter: &TopicFilter) -> Option<TopicFilter> {
        let pattern = filter.pattern();
        let share = filter.as_str().strip_suffix(pattern)?;
        TopicFilter::parse(&[share, self.strip(pattern)?].concat()).ok()
    }

    fn strip<'a>(&self, text: &'a str) -> Option<&'a str> {
        // A topic like `acme/$a`, of a publisher outside, must not become `$a`: `#` would match it.
        let own = text.strip_prefix(self.prefix_of(text))?;
        (!own.is_empty() && own.starts_with('$') == text.starts_with('$')).then_some(own)
    }
}

format_as_text!(Mountpoint);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::topic::MAX_LEVELS;

    #[test]
    fn a_text_that_is_no_mountpoint_is_refused_with_its_rule() {
        let long = "x".repeat(Mountpoint::MAX) + "/";
        for (text, error) in [
            ("", MountpointError::Empty),
            ("t1", MountpointError::End),
            ("$t1/", MountpointError::Dollar),
            ("t1/+/", MountpointError::Wildcard),
            ("t1/#/", MountpointError::Wildcard),
            ("t\0/", MountpointError::Null),
            (&long, MountpointError::TooLong),
        ] {
            assert_eq!(Mountpoint::parse(text), Err(error), "{text}");
        }
        for text in ["/", "t1/", "a//b/", "a/$b/", &long[1..]] {
            assert_eq!(Mountpoint::parse(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn topics_and_filters_are_the_same_after_they_went_in_and_out() {
        let mountpoint = Mountpoint::parse("a/b/").unwrap();
        for (own, mounted) in
            [("t", "a/b/t"), ("/", "a/b//"), ("a/b/t", "a/b/a/b/t"), ("$SYS/x", "$mount/a/b/$SYS/x")]
        {
            let name = mountpoint.mount_name(&TopicName::parse(own).unwrap()).unwrap();
            assert_eq!(name.as_str(), mounted);
            assert_eq!(mountpoint.own_name(&name), Some(own));
        }
        for (own, mounted) in [
            ("#", "a/b/#"),
            ("+/x", "a/b/+/x"),
            ("$SYS/#", "$mount/a/b/$SYS/#"),
            ("$share/g/#", "$share/g/a/b/#"),
            ("$share/g/$x/+", "$share/g/$mount/a/b/$x/+"),
            ("$share/a/b/t", "$share/a/a/b/b/t"),
        ] {
            let own = TopicFilter::parse(own).unwrap();
            let filter = mountpoint.mount_filter(&own).unwrap();
            assert_eq!((filter.as_str(), filter.share_name()), (mounted, own.share_name()));
            assert_eq!(mountpoint.own_filter(&filter), Some(own));
        }
    }

    #[test]
    fn a_tenant_has_no_topic_for_one_of_the_server_that_it_could_not_publish() {
        let mountpoint = Mountpoint::parse("a/b/").unwrap();
        for text in
            ["a/b", "a/b/", "a/bc/t", "x", "a/b/$t", "$mount/a/b/t", "$mount/a/b/", "$SYS/x", "$mount/x/$y"]
        {
            assert_eq!(mountpoint.own_name(&TopicName::parse(text).unwrap()), None, "{text}");
            assert_eq!(mountpoint.own_filter(&TopicFilter::parse(text).unwrap()), None, "{text}");
        }
    }

    /// The filters of a tenant match the same of its topics as before, and none of another tenant's.
    #[test]
    fn a_filter_matches_after_the_mapping_as_before_it() {
        let [one, other] = ["t1/", "t2/"].map(|text| Mountpoint::parse(text).unwrap());
        let names = ["a", "/", "a/b", "$a", "$a/b", "t2/a", "$mount/t2/$a", "t1"]
            .map(|t| TopicName::parse(t).unwrap());
        let filters =
            ["#", "+", "+/#", "+/b", "a/#", "a", "$a/#", "$a/+", "$share/g/#", "t2/#", "$mount/#", "+/+/+"];
        for filter in filters.map(|text| TopicFilter::parse(text).unwrap()) {
            let mounted = one.mount_filter(&filter).unwrap();
            for name in &names {
                let matches = mounted.matches(&one.mount_name(name).unwrap());
                assert_eq!(matches, filter.matches(name), "{filter} {name}");
                assert!(!mounted.matches(&other.mount_name(name).unwrap()), "{filter} {name}");
            }
        }
    }

    #[test]
    fn a_mounted_topic_obeys_the_limits_of_topics() {
        let mountpoint = Mountpoint::parse("t1/").unwrap();
        let long = TopicName::parse(&"x".repeat(65_533)).unwrap();
        assert_eq!(mountpoint.mount_name(&long), Err(TopicError::TooLong));
        let deep = TopicFilter::parse(&["x"; MAX_LEVELS].join("/")).unwrap();
        assert_eq!(mountpoint.mount_filter(&deep), Err(TopicError::TooManyLevels));
    }
}
