//! Listeners with policies of their own.

use std::sync::Arc;

use braid_broker::{
    Authenticate, Authorize, BrokerConfig, BrokerListener, ListenerPolicy, MountpointTemplate,
};
use braid_proto::packet::{Connect, ProtocolVersion};
use braid_store::Store;
use braid_transport::mem::{self, Connector};

use super::{Client, TestBroker, only_stream};

/// Another listener of a [`TestBroker`].
pub(crate) struct Entrance(Connector);

impl Entrance {
    /// A link before CONNECT.
    pub(crate) async fn link(&self, version: ProtocolVersion) -> Client {
        Client::new(only_stream(self.0.connect().await.expect("the broker listens")), version)
    }

    /// A connected client.
    pub(crate) async fn connect(&self, connect: Connect) -> Client {
        let mut client = self.link(connect.version).await;
        client.send_connect(connect).await;
        client.accepted().await;
        client
    }
}

impl TestBroker {
    /// A broker with a listener of this policy, beside the usual one.
    pub(crate) fn start_with_policy(config: BrokerConfig, policy: ListenerPolicy) -> (Self, Entrance) {
        let (listener, connector) = mem::listener();
        (Self::start_listening(config, vec![BrokerListener { listener, policy }]), Entrance(connector))
    }

    /// A broker with a listener for each of these mountpoints, beside the one without.
    pub(crate) fn start_mounted<const N: usize>(
        config: BrokerConfig,
        rule: impl Authenticate,
        authorize: Arc<dyn Authorize>,
        store: Arc<dyn Store>,
        mountpoints: [&str; N],
    ) -> (Self, [Entrance; N]) {
        let (mut listeners, mut entrances) = (Vec::new(), Vec::new());
        for text in mountpoints {
            let (listener, connector) = mem::listener();
            let mountpoint = Some(MountpointTemplate::parse(text).expect("a mountpoint"));
            let policy = ListenerPolicy { mountpoint, ..ListenerPolicy::default() };
            listeners.push(BrokerListener { listener, policy });
            entrances.push(Entrance(connector));
        }
        let broker = Self::start_on(config, rule, authorize, store, None, listeners);
        (broker, entrances.try_into().ok().expect("as many as mountpoints"))
    }
}
