//! Why a machine does not let us make namespaces, in words that say what to change.

use std::io;

use super::error::HouseError;

/// Sysctls that limit the number of namespaces of each kind.
const LIMITS: [&str; 4] = [
    "user.max_user_namespaces",
    "user.max_net_namespaces",
    "user.max_mnt_namespaces",
    "user.max_pid_namespaces",
];

/// Error for a failed `unshare` or user mapping. `knob` reads a sysctl by its name.
pub(super) fn refusal(error: &io::Error, is_root: bool, knob: impl Fn(&str) -> Option<String>) -> HouseError {
    let is = |name: &str, value: &str| knob(name).is_some_and(|now| now.trim() == value);
    let instead = if is_root { "" } else { ", or run this command with sudo" };
    let permit = |name: &str, value: &str, who: &str| {
        format!("{who} does not let you make namespaces: sudo sysctl -w {name}={value}{instead}")
    };
    let none_left = || LIMITS.iter().find(|limit| is(limit, "0"));
    HouseError::Refused(match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EUSERS | libc::EPERM | libc::EACCES) if none_left().is_some() => {
            let limit = none_left().unwrap_or(&LIMITS[0]);
            permit(limit, "10000", "this machine")
        }
        Some(libc::EPERM | libc::EACCES) if is("kernel.unprivileged_userns_clone", "0") => {
            permit("kernel.unprivileged_userns_clone", "1", "this kernel")
        }
        Some(libc::EPERM | libc::EACCES) if is("kernel.apparmor_restrict_unprivileged_userns", "1") => {
            permit("kernel.apparmor_restrict_unprivileged_userns", "0", "AppArmor")
        }
        Some(libc::EPERM | libc::EACCES) => {
            format!(
                "may not make namespaces here, as in most containers: start it with --privileged{instead}"
            )
        }
        Some(libc::ENOSPC | libc::EUSERS) => format!(
            "there are too many namespaces, or they are nested too deep: raise {} or {}, or end programs that hold some",
            LIMITS[0], LIMITS[1]
        ),
        Some(libc::EINVAL) => {
            "this kernel has no user, network or PID namespaces (CONFIG_USER_NS, CONFIG_NET_NS, \
             CONFIG_PID_NS): use another"
                .into()
        }
        _ => format!("cannot make namespaces: {error}{instead}"),
    })
}

/// Reads a sysctl.
pub(super) fn sysctl(name: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(errno: i32, knobs: &[(&str, &str)]) -> String {
        let knob =
            |name: &str| knobs.iter().find(|(own, _)| *own == name).map(|(_, value)| format!("{value}\n"));
        refusal(&io::Error::from_raw_os_error(errno), false, knob).to_string()
    }

    #[test]
    fn each_knob_is_named_when_it_is_the_cause() {
        let debian = [("kernel.unprivileged_userns_clone", "0"), ("user.max_user_namespaces", "96365")];
        assert_eq!(
            said(libc::EPERM, &debian),
            "this kernel does not let you make namespaces: sudo sysctl -w kernel.unprivileged_userns_clone=1, \
             or run this command with sudo"
        );
        let ubuntu = [
            ("kernel.unprivileged_userns_clone", "1"),
            ("kernel.apparmor_restrict_unprivileged_userns", "1"),
        ];
        assert!(said(libc::EPERM, &ubuntu).contains("kernel.apparmor_restrict_unprivileged_userns=0"));
        let hardened = [("user.max_user_namespaces", "0")];
        assert!(said(libc::ENOSPC, &hardened).contains("user.max_user_namespaces=10000"));
        assert!(
            said(libc::ENOSPC, &[("user.max_net_namespaces", "0")]).contains("user.max_net_namespaces=10000")
        );
    }

    #[test]
    fn root_is_not_told_to_become_root() {
        let line = refusal(&io::Error::from_raw_os_error(libc::EPERM), true, |_| None).to_string();
        assert!(line.ends_with("--privileged"), "{line}");
    }

    #[test]
    fn without_a_knob_the_line_says_what_else_it_may_be() {
        assert!(said(libc::EPERM, &[]).contains("container"));
        assert!(said(libc::ENOSPC, &[("user.max_user_namespaces", "5")]).contains("nested"));
        assert!(said(libc::EINVAL, &[]).contains("CONFIG_USER_NS"));
        for errno in [libc::EPERM, libc::ENOSPC, libc::EINVAL, libc::ENOMEM] {
            let line = said(errno, &[]);
            assert!(!line.contains('\n'), "{line}");
        }
    }
}
