//! Priority of a measurement over the other processes of its machine.

use std::fs;

use rustix::process::setpriority_process;

/// The kernel weighs sessions against each other before it looks at the nice values inside of one (sched(7), "The
/// autogroup feature"), so the session's own value counts too.
const SESSION: &str = "/proc/self/autogroup";
const NICE: i32 = -10;

/// Guard of a raised priority: while it lives, this thread and the processes it starts precede others. Dropping it
/// restores the session's nice value.
pub struct RaisedPriority {
    session_nice: Option<String>,
}

impl RaisedPriority {
    /// Raises the priority.
    ///
    /// # Errors
    /// The user is not root.
    pub fn take() -> Result<Self, String> {
        setpriority_process(None, NICE).map_err(|error| format!("--go-first takes root: {error}"))?;
        // Kernels without the feature have no such file.
        let session_nice = fs::read_to_string(SESSION).ok().and_then(|text| nice_of(&text));
        if session_nice.is_some() {
            fs::write(SESSION, NICE.to_string())
                .map_err(|error| format!("--go-first cannot write {SESSION}: {error}"))?;
        }
        Ok(Self { session_nice })
    }
}

impl Drop for RaisedPriority {
    fn drop(&mut self) {
        if let Some(nice) = &self.session_nice {
            // Best effort: the value ends with the session.
            let _ = fs::write(SESSION, nice);
        }
    }
}

/// Value in `/autogroup-9 nice 0`.
fn nice_of(autogroup: &str) -> Option<String> {
    autogroup.trim().rsplit_once(" nice ").map(|(_, nice)| nice.to_owned())
}

#[cfg(test)]
mod tests {
    use super::nice_of;

    #[test]
    fn nice_value_of_a_session() {
        assert_eq!(nice_of("/autogroup-9 nice -5\n").as_deref(), Some("-5"));
        assert_eq!(nice_of(""), None);
    }
}
