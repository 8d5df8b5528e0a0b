//! Parser and decisions of access control lists.

use braid_auth::acl::{self, ACTIONS, Acl, Action};

use super::{Vocabulary, check_error};

/// Any bytes are a list or have an error of one line. A granted filter matches permitted topics only. A list that is
/// cut between two lines permits nothing more. Own rules decide before others.
pub fn acl_file(data: &[u8]) {
    let own = Acl::parse_own(data, "acl");
    if let Err(error) = &own {
        check_error(&error.to_string());
    }
    let whole = match Acl::parse(data, "acl") {
        Ok(acl) => acl,
        Err(error) => return check_error(&error.to_string()),
    };
    let half = data[..data.len() / 2].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let cut = Acl::parse(&data[..half], "acl").ok();
    let vocabulary = Vocabulary::new(std::str::from_utf8(data).expect("a list is UTF-8"));
    for subject in vocabulary.subjects() {
        for filter in &vocabulary.filters {
            let decision = whole.decide_filter(&subject, Action::Subscribe, filter);
            for topic in vocabulary.topics.iter().filter(|topic| decision.allowed && filter.matches(topic)) {
                assert!(
                    whole.decide(&subject, Action::Subscribe, topic).allowed,
                    "{subject:?} {filter} {topic}"
                );
            }
        }
        for (topic, action) in
            vocabulary.topics.iter().flat_map(|topic| ACTIONS.map(|action| (topic, action)))
        {
            let decision = whole.decide(&subject, action, topic);
            assert!(decision.line.is_some() || !decision.allowed);
            let is_more = cut.as_ref().is_some_and(|cut| cut.decide(&subject, action, topic).allowed);
            assert!(decision.allowed || !is_more, "{subject:?} {action:?} {topic}");
            if let Ok(own) = &own {
                let first = own.decide(&subject, action, topic);
                let both = acl::decide(&[own, &whole], &subject, action, topic);
                assert_eq!(both.list, usize::from(first.line.is_none() && both.line.is_some()));
            }
        }
    }
}
