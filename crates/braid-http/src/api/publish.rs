//! Publishing a message as the broker itself.

use std::time::Instant;

use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use braid_proto::message::Message;
use braid_proto::packet::{MessageProperties, QoS, UserProperties};
use braid_proto::topic::TopicName;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;
use super::extract::{Answer, Json, JsonBody, NoParams, Params, Refused};

/// Longest string of MQTT, in bytes.
const MAX_STRING: usize = 65_535;

/// The most bytes of all User Properties together.
const MAX_USER_PROPERTIES: usize = 65_535;

/// Message to publish.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishRequest {
    /// Topic, without wildcards. Topics that begin with `$` are refused.
    topic: String,
    /// Payload; an empty one with `retain` deletes the retained message.
    payload: String,
    #[serde(default)]
    encoding: Encoding,
    /// 0, 1 or 2.
    #[serde(default)]
    qos: u8,
    #[serde(default)]
    retain: bool,
    #[serde(default)]
    properties: Properties,
}

/// Form of a payload.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    /// Text as it is.
    #[default]
    Plain,
    /// Base64 of bytes.
    Base64,
}

/// Properties of MQTT 5.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct Properties {
    content_type: Option<String>,
    response_topic: Option<String>,
    /// Base64.
    correlation_data: Option<String>,
    message_expiry_secs: Option<u32>,
    /// Pairs of a name and a value.
    // A tuple would have `items: false`, which not every generator of clients reads.
    #[schema(value_type = Vec<Vec<String>>)]
    user_properties: Vec<(String, String)>,
}

/// Published message.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PublishResult {
    /// Sessions that receive the message, connected or not. Fewer get it where a queue is full.
    matched: usize,
}

/// Checks a string as MQTT 1.5.4 wants it.
fn string<'a>(name: &str, text: &'a str) -> Result<&'a str, Refused> {
    if text.len() > MAX_STRING || text.contains('\0') {
        return Err(Refused::bad(format!(
            "{name}: a string of MQTT has at most {MAX_STRING} bytes, and no U+0000"
        )));
    }
    Ok(text)
}

fn bytes(name: &str, text: &str) -> Result<Bytes, Refused> {
    let decoded = STANDARD.decode(text).map_err(|_| Refused::bad(format!("{name}: is no base64")))?;
    Ok(decoded.into())
}

impl Properties {
    fn parse(&self) -> Result<Option<Box<MessageProperties>>, Refused> {
        let mut user = UserProperties::new();
        let mut len = 0;
        for (name, value) in &self.user_properties {
            len += name.len() + value.len();
            if len > MAX_USER_PROPERTIES {
                return Err(Refused::bad(format!("user_properties: more than {MAX_USER_PROPERTIES} bytes")));
            }
            user.push(string("user_properties", name)?, string("user_properties", value)?);
        }
        let response_topic = self.response_topic.as_deref().map(|text| {
            TopicName::parse(text).map_err(|error| Refused::bad(format!("response_topic: {error}")))
        });
        let correlation_data =
            self.correlation_data.as_deref().map(|text| bytes("correlation_data", text)).transpose()?;
        if correlation_data.as_ref().is_some_and(|data| data.len() > MAX_STRING) {
            return Err(Refused::bad(format!("correlation_data: more than {MAX_STRING} bytes")));
        }
        let content_type =
            self.content_type.as_deref().map(|text| string("content_type", text)).transpose()?;
        let properties = MessageProperties {
            payload_format: None,
            message_expiry: self.message_expiry_secs,
            content_type: content_type.map(Into::into),
            response_topic: response_topic.transpose()?,
            correlation_data,
            user,
        };
        Ok((properties != MessageProperties::default()).then(|| Box::new(properties)))
    }
}

impl PublishRequest {
    fn message(&self) -> Result<Message, Refused> {
        let topic = TopicName::parse(&self.topic).map_err(|error| Refused::bad(format!("topic: {error}")))?;
        if topic.is_dollar() {
            return Err(Refused::bad("topic: those that begin with $ are the broker's"));
        }
        let qos = QoS::from_bits(self.qos).ok_or_else(|| Refused::bad("qos: it may be 0, 1 or 2"))?;
        let payload = match self.encoding {
            Encoding::Plain => Bytes::copy_from_slice(self.payload.as_bytes()),
            Encoding::Base64 => bytes("payload", &self.payload)?,
        };
        let properties = self.properties.parse()?;
        Ok(Message::new(topic, payload, qos, self.retain).with_properties(properties, Instant::now()))
    }
}

#[utoipa::path(
    post, path = "/api/v1/publish", tag = "messages", request_body = PublishRequest,
    description = "Publishes a message as the broker itself, and answers when it is durable for those that receive it.",
    responses((status = 200, description = "Success", body = PublishResult), (status = 500, description = "Nothing was published, or the message was delivered and is not durable, as the detail says"), (status = 507, description = "The message was delivered, but it is not retained: a limit is reached")),
)]
pub(super) async fn publish(
    State(api): State<Api>,
    Params(NoParams {}): Params<NoParams>,
    JsonBody(request): JsonBody<PublishRequest>,
) -> Answer<PublishResult> {
    let published = api.handle()?.publish_durably(request.message()?).await?;
    Ok(Json(PublishResult { matched: published.receivers }))
}
