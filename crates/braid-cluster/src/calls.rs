//! Calls between nodes.

use std::sync::Arc;

use async_nats::Client;
use braid_broker::node_handle::NodeHandle;
use braid_proto::packet::ClientId;
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use crate::store::NodeState;

/// Call to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "lowercase")]
pub(crate) enum Call {
    /// Release the session of a client.
    Release {
        /// Client Identifier.
        client: String,
    },
}

/// Answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reply {
    #[serde(rename = "done")]
    pub(crate) is_done: bool,
}

impl Call {
    /// The JSON. Texts always have one.
    pub(crate) fn write(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

impl Reply {
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok()
    }
}

/// Answers calls for as long as the node runs.
pub(crate) async fn answer(
    state: Arc<NodeState>,
    client: Client,
    handle: NodeHandle,
) -> Result<(), async_nats::Error> {
    let node = state.node.parse()?;
    let mut calls = client.subscribe(state.layout.calls(&node)).await?;
    while let Some(message) = calls.next().await {
        let Some(reply) = message.reply else { continue };
        let (client, handle) = (client.clone(), handle.clone());
        tokio::spawn(async move {
            let is_done = match serde_json::from_slice(&message.payload) {
                Ok(Call::Release { client }) => {
                    handle.release_session(&ClientId::from(&*client)).await.is_ok()
                }
                Err(error) => {
                    tracing::warn!(%error, "a call of another node cannot be read");
                    false
                }
            };
            let answer = serde_json::to_vec(&Reply { is_done }).unwrap_or_default();
            // The caller gives up by itself.
            let _ = client.publish(reply, answer.into()).await;
        });
    }
    Ok(())
}
