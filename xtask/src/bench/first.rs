//! `--go-first`: what is measured runs before whatever else keeps a busy machine busy.

use std::fs;

use super::kernel;

/// The kernel weighs sessions against each other before it looks at the nice values inside of one (sched(7), "The
/// autogroup feature"), so the session's own value counts too.
const SESSION: &str = "/proc/self/autogroup";
const NICE: i32 = -10;

/// While this lives, this thread and what it starts go first. Dropping it gives the session its old value back.
pub(super) struct First {
    session_nice: Option<String>,
}

impl First {
    /// Goes first.
    ///
    /// # Errors
    /// Not root.
    pub(super) fn take() -> Result<Self, String> {
        kernel::nice(NICE).map_err(|error| format!("--go-first takes root: {error}"))?;
        // Kernels without the feature have no such file, and nothing to weigh.
        let session_nice = fs::read_to_string(SESSION).ok().and_then(|text| nice_of(&text));
        if session_nice.is_some() {
            fs::write(SESSION, NICE.to_string())
                .map_err(|error| format!("--go-first cannot write {SESSION}: {error}"))?;
        }
        Ok(Self { session_nice })
    }
}

impl Drop for First {
    fn drop(&mut self) {
        if let Some(nice) = &self.session_nice {
            // Best effort: the value dies with the session anyway.
            let _ = fs::write(SESSION, nice);
        }
    }
}

/// The value in `/autogroup-9 nice 0`.
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
