//! Properties of MQTT 5 from `-D`.

use std::num::NonZeroU32;

use braid_client::{Builder, MessageProperties, TopicName};
use braid_proto::packet::UserProperties;

use super::Failure;

/// The properties that `-D` sets, per packet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Properties {
    pub(crate) session_expiry: Option<u32>,
    receive_maximum: Option<u16>,
    maximum_packet_size: Option<u32>,
    topic_alias_maximum: Option<u16>,
    request_problem_information: Option<bool>,
    request_response_information: Option<bool>,
    connect_user: UserProperties,
    pub(crate) publish: MessageProperties,
    pub(crate) will: MessageProperties,
    /// Will Delay Interval in seconds.
    pub(crate) will_delay: u32,
    pub(crate) subscription_id: Option<NonZeroU32>,
    pub(crate) subscribe_user: UserProperties,
}

impl Properties {
    /// Reads the words of all `-D` together: packet, name and value, and one word more for user-property.
    pub(crate) fn parse(words: &[String]) -> Result<Self, Failure> {
        let mut properties = Self::default();
        let mut words = words.iter().map(String::as_str);
        while let Some(packet) = words.next() {
            let (Some(name), Some(value)) = (words.next(), words.next()) else {
                return Err(Failure::usage("Error: -D needs a packet, a property's name and its value."));
            };
            if name == "user-property" {
                let missing = || Failure::usage("Error: user-property needs a name and a value.");
                properties.user_of(packet)?.push(value, words.next().ok_or_else(missing)?);
            } else {
                properties.set(packet, name, value)?;
            }
        }
        Ok(properties)
    }

    fn user_of(&mut self, packet: &str) -> Result<&mut UserProperties, Failure> {
        match packet {
            "connect" => Ok(&mut self.connect_user),
            "publish" => Ok(&mut self.publish.user),
            "will" => Ok(&mut self.will.user),
            "subscribe" => Ok(&mut self.subscribe_user),
            _ => Err(unknown_packet(packet)),
        }
    }

    fn set(&mut self, packet: &str, name: &str, value: &str) -> Result<(), Failure> {
        match (packet, name) {
            ("connect", "session-expiry-interval") => self.session_expiry = Some(number(name, value)?),
            ("connect", "receive-maximum") => self.receive_maximum = Some(not_zero(name, value)?),
            ("connect", "maximum-packet-size") => self.maximum_packet_size = Some(not_zero(name, value)?),
            ("connect", "topic-alias-maximum") => self.topic_alias_maximum = Some(number(name, value)?),
            ("connect", "request-problem-information") => {
                self.request_problem_information = Some(flag(name, value)?);
            }
            ("connect", "request-response-information") => {
                self.request_response_information = Some(flag(name, value)?);
            }
            ("will", "will-delay-interval") => self.will_delay = number(name, value)?,
            ("publish", "topic-alias") => {
                return Err(Failure::usage("Error: topic aliases are chosen by the client: leave them out."));
            }
            ("publish", _) => return set_message(&mut self.publish, packet, name, value),
            ("will", _) => return set_message(&mut self.will, packet, name, value),
            ("subscribe", "subscription-identifier") => {
                let id: u32 = not_zero(name, value)?;
                self.subscription_id = NonZeroU32::new(id).filter(|id| id.get() <= 268_435_455);
                if self.subscription_id.is_none() {
                    return Err(Failure::usage("Error: subscription-identifier is 1 to 268435455."));
                }
            }
            ("connect" | "subscribe", _) => return Err(unknown_name(packet, name)),
            _ => return Err(unknown_packet(packet)),
        }
        Ok(())
    }

    /// Whether any property of a Will is set.
    pub(crate) fn has_will(&self) -> bool {
        self.will_delay > 0 || self.will != MessageProperties::default()
    }

    /// Sets the properties of CONNECT.
    pub(crate) fn connect(&self, mut builder: Builder) -> Result<Builder, Failure> {
        if let Some(messages) = self.receive_maximum {
            builder = builder.receive_maximum(messages);
        }
        if let Some(bytes) = self.maximum_packet_size {
            builder = builder.maximum_packet_size(bytes);
        }
        if let Some(aliases) = self.topic_alias_maximum {
            builder = builder.topic_alias_maximum(aliases);
        }
        if let Some(wanted) = self.request_problem_information {
            builder = builder.request_problem_information(wanted);
        }
        if let Some(wanted) = self.request_response_information {
            builder = builder.request_response_information(wanted);
        }
        for (name, value) in self.connect_user.iter() {
            builder = builder.user_property(name, value);
        }
        Ok(builder)
    }
}

fn set_message(to: &mut MessageProperties, packet: &str, name: &str, value: &str) -> Result<(), Failure> {
    match name {
        "payload-format-indicator" => to.payload_format = Some(flag(name, value)?),
        "message-expiry-interval" => to.message_expiry = Some(number(name, value)?),
        "content-type" => to.content_type = Some(value.into()),
        "response-topic" => {
            let topic = TopicName::parse(value)
                .map_err(|error| Failure::usage(format!("Error: response-topic {value:?}: {error}.")))?;
            to.response_topic = Some(topic);
        }
        "correlation-data" => to.correlation_data = Some(value.to_owned().into()),
        _ => return Err(unknown_name(packet, name)),
    }
    Ok(())
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Failure> {
    value.parse().map_err(|_| {
        let most = u64::MAX >> (64 - 8 * size_of::<T>().min(8));
        Failure::usage(format!("Error: {name} is a number from 0 to {most}, not {value:?}."))
    })
}

fn not_zero<T: std::str::FromStr + Default + PartialEq>(name: &str, value: &str) -> Result<T, Failure> {
    let number: T = number(name, value)?;
    if number == T::default() {
        return Err(Failure::usage(format!("Error: {name} must not be 0.")));
    }
    Ok(number)
}

fn flag(name: &str, value: &str) -> Result<bool, Failure> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(Failure::usage(format!("Error: {name} is 0 or 1, not {value:?}."))),
    }
}

fn unknown_packet(packet: &str) -> Failure {
    Failure::usage(format!(
        "Error: no properties can be set on {packet:?}: use connect, publish, subscribe or will."
    ))
}

fn unknown_name(packet: &str, name: &str) -> Failure {
    let known = match packet {
        "connect" => {
            "session-expiry-interval, receive-maximum, maximum-packet-size, topic-alias-maximum, \
             request-problem-information, request-response-information"
        }
        "subscribe" => "subscription-identifier",
        "will" => {
            "will-delay-interval, payload-format-indicator, message-expiry-interval, content-type, \
             response-topic, correlation-data"
        }
        _ => {
            "payload-format-indicator, message-expiry-interval, content-type, response-topic, \
             correlation-data"
        }
    };
    Failure::usage(format!("Error: {packet} has no property {name:?}: use {known} or user-property."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Properties, Failure> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Properties::parse(&words)
    }

    #[test]
    fn user_properties_take_a_word_more_than_others() {
        let properties = parse(
            "publish user-property a b publish content-type text publish user-property c d \
             subscribe subscription-identifier 7",
        )
        .unwrap();
        assert_eq!(properties.publish.user, [("a", "b"), ("c", "d")].into());
        assert_eq!(properties.publish.content_type.as_deref(), Some("text"));
        assert_eq!(properties.subscription_id, NonZeroU32::new(7));
    }

    #[test]
    fn mistakes_name_what_is_possible() {
        let error = |text| parse(text).unwrap_err().to_string();
        assert!(error("publish colour red").contains("content-type"), "{}", error("publish colour red"));
        assert!(error("pingreq content-type x").contains("connect, publish"));
        assert!(error("publish content-type").contains("needs a packet"));
        assert!(error("publish user-property a").contains("a name and a value"));
        assert!(error("connect receive-maximum 0").contains("must not be 0"));
        assert!(error("connect receive-maximum 65536").contains("0 to 65535"));
        assert!(error("subscribe subscription-identifier 268435456").contains("268435455"));
    }
}
