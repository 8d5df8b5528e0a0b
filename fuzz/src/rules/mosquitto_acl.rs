//! Import of mosquitto's acl_file.

use braid_auth::acl::{ACTIONS, Acl, Action};
use braid_auth::mosquitto::import;

use super::{Vocabulary, check_error};

/// Any bytes are an acl_file or have an error of one line. The imported text has the answers of the file itself.
pub fn mosquitto_acl(data: &[u8]) {
    let (direct, text) = match (Acl::parse_mosquitto(data, "acl"), import(data, "acl")) {
        (Ok(acl), Ok(text)) => (acl, text),
        (Err(error), Err(other)) => {
            assert_eq!(error, other);
            return check_error(&error.to_string());
        }
        (direct, imported) => panic!("{:?} {:?}", direct.err(), imported.err()),
    };
    let imported = Acl::parse(text.as_bytes(), "acl").expect("an import is a list");
    assert_eq!(direct.rules(), imported.rules());
    let vocabulary = Vocabulary::new(std::str::from_utf8(data).expect("an acl_file is UTF-8"));
    for subject in vocabulary.subjects() {
        for topic in &vocabulary.topics {
            let [publish, subscribe, receive, prioritize] = ACTIONS.map(|action| {
                let allowed = direct.decide(&subject, action, topic).allowed;
                assert_eq!(allowed, imported.decide(&subject, action, topic).allowed, "{subject:?} {topic}");
                allowed
            });
            assert!(subscribe >= receive && !prioritize, "{subject:?} {topic} {publish}");
        }
        for filter in &vocabulary.filters {
            let [direct, imported] = [&direct, &imported]
                .map(|acl| acl.decide_filter(&subject, Action::Subscribe, filter).allowed);
            assert_eq!(direct, imported, "{subject:?} {filter}");
        }
    }
}
