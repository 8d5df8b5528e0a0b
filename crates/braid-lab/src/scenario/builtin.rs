//! The scenarios that come with the program.

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// Its name.
    pub name: &'static str,
    /// Its file in the repository, for errors.
    pub file: &'static str,
    /// Its TOML.
    pub text: &'static str,
}

macro_rules! builtins {
    ($($name:literal),* $(,)?) => {
        &[$(Builtin {
            name: $name,
            file: concat!("lab/scenarios/", $name, ".toml"),
            text: include_str!(concat!("../../../../lab/scenarios/", $name, ".toml")),
        }),*]
    };
}

/// All of them, in the order of reading.
pub fn builtin() -> &'static [Builtin] {
    builtins![
        "hol",
        "hol-down",
        "hol-shaper",
        "hol-4g",
        "hol-sat",
        "gate",
        "gate-down",
        "one-or-ten",
        "interop-cells"
    ]
}

impl Builtin {
    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        builtin().iter().find(|one| one.name == name)
    }
}
