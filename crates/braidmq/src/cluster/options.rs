//! Options of a node, from the configuration, its files, and the machine.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use braid_access::read_file;
use braid_cluster::{ClusterOptions, Dimensions, Login, Name, Upkeep};

use crate::config::{Config, ConfigError};

/// File in the data directory that identifies a node over its restarts.
const INSTANCE_FILE: &str = "cluster.instance";

/// Length of an instance: 16 random bytes as hexadecimal digits.
const INSTANCE_LENGTH: usize = 32;

/// Largest packet of MQTT, in bytes, without its fixed header.
const PACKET_SIZE_MAX: u32 = 268_435_455;

/// Longest file with a password, in bytes.
const MAX_SECRET: usize = 16 << 10;

/// Longest name of a node that is made of a host name.
const NODE_MAX: usize = 48;

impl Config {
    /// Options of this node; `None` without a cluster. Makes the file of its instance at the first start.
    ///
    /// # Errors
    /// The password cannot be read, the host name is no name of a node, or the file of the instance cannot be used.
    pub(crate) fn cluster_options(&self) -> Result<Option<ClusterOptions>, ConfigError> {
        if !self.cluster.is_on() {
            return Ok(None);
        }
        let node = match &self.cluster.node {
            Some(node) => node.clone(),
            None => node_of_host(&host_name())?,
        };
        let instance = instance(&self.data_dir)?;
        self.options(node, instance).map(Some)
    }

    /// Options for a connection that is no node.
    ///
    /// # Errors
    /// The password cannot be read.
    pub(super) fn cluster_watch_options(&self) -> Result<ClusterOptions, ConfigError> {
        self.options(Name::of_braidmq(), String::new())
    }

    fn options(&self, node: Name, instance: String) -> Result<ClusterOptions, ConfigError> {
        let cluster = &self.cluster;
        let login = match (&cluster.user, &cluster.password_file, &cluster.credentials) {
            (Some(user), Some(file), _) => Login::Password { user: user.clone(), password: password(file)? },
            (_, _, Some(file)) => Login::Credentials(file.clone()),
            _ => Login::None,
        };
        Ok(ClusterOptions {
            servers: cluster.nats.iter().map(ToString::to_string).collect(),
            cluster: cluster.name.clone(),
            node,
            instance,
            login,
            ca_files: cluster.ca.clone(),
            certificate: cluster.certificate.clone().zip(cluster.key.clone()),
            monitors: cluster.monitor.iter().map(ToString::to_string).collect(),
            accepted: cluster.accept_risks.clone(),
            dimensions: Dimensions {
                shards: cluster.shards,
                replicas: cluster.replicas,
                log_bytes: cluster.log_bytes,
            },
            address: cluster.address.as_str().to_owned(),
            // The largest there is: lowered to what NATS takes.
            largest_packet: match self.mqtt.maximum_packet_size {
                PACKET_SIZE_MAX => 0,
                wanted => usize::try_from(wanted).unwrap_or(usize::MAX),
            },
            upkeep: Upkeep::default(),
        })
    }
}

/// First line of a file.
fn password(file: &Path) -> Result<String, ConfigError> {
    let refused = |problem: String| refused("cluster.password_file", problem);
    let text = read_file(file, MAX_SECRET).map_err(|error| refused(error.to_string()))?;
    let text = String::from_utf8(text).map_err(|_| refused(format!("{}: is not UTF-8", file.display())))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(refused(format!("{}: its first line is empty, and is to be the password", file.display()))),
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Name of a node from the host name up to its first dot: characters that no name has become hyphens.
fn node_of_host(host: &str) -> Result<Name, ConfigError> {
    let label = host.split('.').next().unwrap_or_default();
    let fit = |char: char| if char.is_ascii_alphanumeric() { char } else { '-' };
    let fitting: String = label.chars().map(fit).take(NODE_MAX).collect();
    let name = fitting.trim_matches('-');
    // Every machine may be called so.
    if name.eq_ignore_ascii_case("localhost") {
        let problem =
            "the host name is localhost, which may be that of another node too: name this node here";
        return Err(refused("cluster.node", problem.to_owned()));
    }
    name.parse().map_err(|_| {
        refused("cluster.node", format!("no name can be made of the host name {host:?}: name this node here"))
    })
}

/// Locks the instance in a data directory for as long as the file is open: two processes with one instance would take
/// the name of the node from each other.
///
/// # Errors
/// Another process has it, or the file cannot be locked.
pub(crate) fn lock_instance(data_dir: &Path) -> Result<fs::File, ConfigError> {
    let path = data_dir.join(INSTANCE_FILE);
    let refused = |problem: String| refused("data_dir", format!("{}: {problem}", path.display()));
    let file = fs::File::open(&path).map_err(|error| refused(format!("cannot be read: {error}")))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(refused(
            "another broker runs with this directory: stop it, or name another directory".to_owned(),
        )),
        Err(fs::TryLockError::Error(error)) => Err(refused(format!("cannot be locked: {error}"))),
    }
}

/// The instance in a data directory, which is made if there is none.
fn instance(data_dir: &Path) -> Result<String, ConfigError> {
    let path = data_dir.join(INSTANCE_FILE);
    let refused = |problem: String| refused("data_dir", format!("{}: {problem}", path.display()));
    let read = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_instance(data_dir, &path).map_err(|error| {
                refused(format!(
                    "cannot be made: {error}; it identifies this node, and has to outlive restarts"
                ))
            })?;
            // Another process may have been first.
            fs::read_to_string(&path)
        }
        read => read,
    };
    let text = read.map_err(|error| {
        refused(format!("cannot be read: {error}; it identifies this node: let the broker's user read it"))
    })?;
    let instance = text.trim_end();
    if instance.len() == INSTANCE_LENGTH && instance.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(instance.to_owned());
    }
    Err(refused(format!(
        "has no {INSTANCE_LENGTH} hexadecimal digits: restore it, or remove it while this node is stopped to be a new one"
    )))
}

/// Writes beside the target, so that a crash leaves no half of a file, and replaces none.
fn make_instance(data_dir: &Path, path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir)?;
    let mut random = [0; INSTANCE_LENGTH / 2];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    // For its owner only.
    let mut draft = tempfile::NamedTempFile::new_in(data_dir)?;
    writeln!(draft, "{digits}")?;
    draft.as_file().sync_all()?;
    match draft.persist_noclobber(path) {
        Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
        _ => fs::File::open(data_dir)?.sync_all(),
    }
}

fn refused(key: &str, problem: String) -> ConfigError {
    ConfigError::Refused { place: key.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use braid_cluster::Risk;

    use super::*;

    #[test]
    fn an_instance_is_of_one_process() {
        let dir = tempfile::tempdir().unwrap();
        assert!(lock_instance(dir.path()).unwrap_err().to_string().contains("cannot be read"));
        instance(dir.path()).unwrap();
        let lock = lock_instance(dir.path()).unwrap();
        let error = lock_instance(dir.path()).unwrap_err().to_string();
        assert!(error.contains("another broker runs with this directory"), "{error}");
        drop(lock);
        lock_instance(dir.path()).unwrap();
    }

    #[test]
    fn a_node_is_called_like_its_host() {
        for (host, expected) in [
            ("node-1", "node-1"),
            ("node-1.example", "node-1"),
            ("MQTT_a", "MQTT-a"),
            ("_a_", "a"),
            (&"x".repeat(60), &"x".repeat(48)),
        ] {
            assert_eq!(node_of_host(host).unwrap().as_str(), expected, "{host}");
        }
        for (host, expected) in [
            ("", "cluster.node: no name can be made of the host name \"\""),
            ("...", "cluster.node: no name can be made of the host name \"...\""),
            ("é", "cluster.node: no name can be made of the host name \"é\""),
            ("localhost.localdomain", "cluster.node: the host name is localhost"),
        ] {
            let error = node_of_host(host).unwrap_err().to_string();
            assert!(error.starts_with(expected) && error.ends_with("name this node here"), "{error}");
        }
        assert!(!host_name().is_empty());
    }

    #[test]
    fn the_instance_outlives_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("a/data");
        let first = instance(&data_dir).unwrap();
        assert_eq!(instance(&data_dir).unwrap(), first);
        assert_ne!(instance(&dir.path().join("b")).unwrap(), first);
        let file = data_dir.join(INSTANCE_FILE);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&data_dir)), (0o600, 0o700));
        assert_eq!(fs::read_dir(&data_dir).unwrap().count(), 1, "no draft is left");
        // A second process that was slower takes what is there.
        make_instance(&data_dir, &file).unwrap();
        assert_eq!(instance(&data_dir).unwrap(), first);
    }

    #[test]
    fn an_instance_that_cannot_be_used_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(INSTANCE_FILE);
        let error = || {
            let error = instance(dir.path()).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("data_dir: {}: ", file.display())) && !error.contains('\n'),
                "{error}"
            );
            error
        };
        for text in ["", "0123", &"g".repeat(INSTANCE_LENGTH), &"0".repeat(INSTANCE_LENGTH + 1), "\u{1b}[2J"]
        {
            fs::write(&file, text).unwrap();
            assert!(error().contains("has no 32 hexadecimal digits"), "{text}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text, "it is left as it is");
        }
        fs::write(&file, [0xff]).unwrap();
        assert!(error().contains("cannot be read: "));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(error().contains("cannot be read: "));
        let blocked = dir.path().join("file");
        fs::write(&blocked, "").unwrap();
        let error = instance(&blocked).unwrap_err().to_string();
        assert!(error.contains("file/cluster.instance: cannot be "), "{error}");
    }

    #[test]
    fn every_key_reaches_the_options() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "s3cret\nmore\n").unwrap();
        let text = format!(
            "data_dir = {:?}\n[cluster]\nnats = ['tls://a', 'tls://b:1']\nname = 'c'\nnode = 'n'\nuser = 'u'\n\
             password_file = {secret:?}\nca = ['ca']\ncertificate = 'cert'\nkey = 'key'\nmonitor = ['http://a:8222/']\n\
             replicas = 5\nshards = 2\nlog_bytes = 3\naddress = 'x:1'\naccept_risks = ['version']\n\
             [mqtt]\nmaximum_packet_size = 7\n",
            dir.path()
        );
        let mut config: Config = toml::from_str(&text).unwrap();
        let options = config.cluster_options().unwrap().unwrap();
        assert!(!format!("{options:?}{config:?}").contains("s3cret"));
        assert_eq!(options.servers, ["tls://a", "tls://b:1"]);
        assert_eq!((options.cluster.as_str(), options.node.as_str()), ("c", "n"));
        assert_eq!(options.instance, instance(dir.path()).unwrap());
        let login = |login: Login| match login {
            Login::Password { user, password } => format!("{user} {password}"),
            Login::Credentials(file) => file.display().to_string(),
            Login::None => String::new(),
        };
        assert_eq!(login(options.login), "u s3cret");
        assert_eq!(
            (options.ca_files, options.certificate),
            (vec!["ca".into()], Some(("cert".into(), "key".into())))
        );
        assert_eq!(
            (options.monitors, options.accepted),
            (vec!["http://a:8222".to_owned()], vec![Risk::Version])
        );
        assert_eq!(options.dimensions, Dimensions { shards: 2, replicas: 5, log_bytes: 3 });
        assert_eq!((options.address.as_str(), options.largest_packet), ("x:1", 7));

        // Another login, and a question that makes no instance.
        config.data_dir = dir.path().join("none");
        (config.cluster.user, config.cluster.password_file) = (None, None);
        assert_eq!(login(config.cluster_watch_options().unwrap().login), "");
        config.cluster.credentials = Some("creds".into());
        assert_eq!(login(config.cluster_watch_options().unwrap().login), "creds");
        assert!(!config.data_dir.exists());
        config.cluster.nats.clear();
        assert!(config.cluster_options().unwrap().is_none() && !config.data_dir.exists(), "no cluster");
    }

    #[test]
    fn a_password_that_cannot_be_used_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        for (bytes, expected) in [
            (None, "cluster.password_file: "),
            (Some(&b""[..]), "its first line is empty"),
            (Some(b"\nx"), "its first line is empty"),
            (Some(b"\xff"), "is not UTF-8"),
        ] {
            if let Some(bytes) = bytes {
                fs::write(&file, bytes).unwrap();
            }
            let error = password(&file).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains(&file.display().to_string()), "{error}");
        }
    }
}
