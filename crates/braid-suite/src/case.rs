//! Cases of `bench broker`: flows of messages, and idle connections.

/// One thing to measure.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Name for `--cases` and `--case`.
    pub(crate) name: &'static str,
    pub(crate) work: Work,
    /// Aims for braidmq, as ratios to mosquitto.
    pub(crate) aim: Aim,
}

/// Kind of measurement.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Messages flow.
    Flow(Flow),
    /// Number of idle connections.
    Idle(u32),
}

/// A flow of messages.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) shape: Shape,
    pub(crate) qos: u8,
    /// Bytes.
    pub(crate) payload: usize,
    /// Messages of a publisher that may be unacknowledged (QoS 1) or undelivered (QoS 0). 0 is no limit.
    pub(crate) window: u32,
    /// Messages per second of all publishers together; `None` is as many as the window allows.
    pub(crate) pace: Option<u32>,
    /// Topics of each publisher, which it uses in turn; a power of two.
    pub(crate) topics: u32,
}

/// Topology of publishers and subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Publisher i to subscriber i, this many of each.
    Pairs(usize),
    /// One publisher to this many subscribers of its topic.
    FanOut(usize),
    /// Number of publishers, each with its topic, to one subscriber of all of them.
    FanIn(usize),
}

/// Upper bounds for braidmq; `None` without a bound.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Aim {
    /// Processor time per delivery, as a ratio to mosquitto's.
    pub(crate) cpu_ratio: Option<f64>,
    /// Median latency, as a ratio to mosquitto's.
    pub(crate) p50_ratio: Option<f64>,
    /// Bytes per idle connection.
    pub(crate) idle_bytes: Option<f64>,
}

impl Shape {
    /// Number of publishers.
    pub(crate) fn publishers(self) -> usize {
        match self {
            Self::Pairs(count) | Self::FanIn(count) => count,
            Self::FanOut(_) => 1,
        }
    }

    /// Number of subscribers.
    pub(crate) fn subscribers(self) -> usize {
        match self {
            Self::Pairs(count) | Self::FanOut(count) => count,
            Self::FanIn(_) => 1,
        }
    }

    /// Deliveries per message.
    pub(crate) fn copies(self) -> u64 {
        match self {
            Self::Pairs(_) | Self::FanIn(_) => 1,
            Self::FanOut(count) => count as u64,
        }
    }
}

/// Topic of a publisher.
pub(crate) fn topic(publisher: usize) -> String {
    format!("bench/{publisher:02}")
}

impl Flow {
    /// Topic filter of a subscriber.
    pub(crate) fn filter(&self, subscriber: usize) -> String {
        let topics = match self.shape {
            Shape::Pairs(_) => topic(subscriber),
            Shape::FanOut(_) => topic(0),
            Shape::FanIn(_) => "bench/+".to_owned(),
        };
        if self.topics > 1 { topics + "/+" } else { topics }
    }

    /// Topics of a publisher in the order of its messages.
    pub(crate) fn topics(&self, publisher: usize) -> Vec<String> {
        match self.topics {
            0 | 1 => vec![topic(publisher)],
            count => (0..count).map(|number| format!("{}/{number:03}", topic(publisher))).collect(),
        }
    }

    /// Description in one line.
    pub(crate) fn describe(&self) -> String {
        let shape = match self.shape {
            Shape::Pairs(count) => format!("{count} publishers to {count} subscribers in pairs"),
            Shape::FanOut(count) => format!("1 publisher to {count} subscribers"),
            Shape::FanIn(count) => format!("{count} publishers to 1 subscriber of bench/+"),
        };
        let speed = match (self.pace, self.window) {
            (Some(pace), _) => format!("paced at {pace}/s"),
            (None, 0) => "saturated, no window".to_owned(),
            (None, window) => format!("saturated, window {window} per publisher"),
        };
        let topics = if self.topics > 1 { format!(", {} topics each", self.topics) } else { String::new() };
        format!("{shape}{topics}, QoS {}, {} B, {speed}", self.qos, self.payload)
    }
}

/// Every case, in the order of a run.
pub(crate) fn all(idle_connections: u32) -> Vec<Case> {
    let flow =
        |shape, qos, payload, window, pace| Work::Flow(Flow { shape, qos, payload, window, pace, topics: 1 });
    let saturated = Aim { cpu_ratio: Some(1.0 / 8.0), ..Aim::default() };
    let paced = Aim { cpu_ratio: Some(1.15), p50_ratio: Some(1.15), ..Aim::default() };
    let idle = Aim { idle_bytes: Some(6.0 * 1024.0), ..Aim::default() };
    vec![
        Case { name: "pairs-qos0", work: flow(Shape::Pairs(10), 0, 64, 1000, None), aim: saturated },
        Case { name: "pairs-qos1", work: flow(Shape::Pairs(10), 1, 64, 100, None), aim: saturated },
        Case { name: "fan-out-qos0", work: flow(Shape::FanOut(100), 0, 256, 200, None), aim: saturated },
        Case { name: "fan-in-qos1", work: flow(Shape::FanIn(100), 1, 64, 100, None), aim: saturated },
        Case { name: "paced-qos0", work: flow(Shape::Pairs(10), 0, 64, 0, Some(20_000)), aim: paced },
        Case { name: "paced-qos1", work: flow(Shape::Pairs(10), 1, 64, 0, Some(8_000)), aim: paced },
        Case { name: "idle", work: Work::Idle(idle_connections), aim: idle },
    ]
}

/// The named cases in the order of a run; all when none is named.
///
/// # Errors
/// An unknown name; the text lists the known ones.
pub(crate) fn select(
    names: &[String],
    idle_connections: u32,
    window: Option<u32>,
) -> Result<Vec<Case>, String> {
    let mut cases = all(idle_connections);
    if let Some(unknown) = names.iter().find(|name| cases.iter().all(|case| case.name != name.as_str())) {
        let known: Vec<_> = cases.iter().map(|case| case.name).collect();
        return Err(format!("no case is called `{unknown}`; there are {}", known.join(", ")));
    }
    cases.retain(|case| crate::wants(names, case.name));
    for case in &mut cases {
        if let (Work::Flow(flow @ Flow { pace: None, .. }), Some(window)) = (&mut case.work, window) {
            if flow.qos > 0 && window == 0 {
                return Err(format!("`{}` is QoS 1: its window must be at least 1", case.name));
            }
            flow.window = window;
        }
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::{Flow, Shape, Work, all, select};

    #[test]
    fn no_name_selects_every_case_and_names_are_unique() {
        let cases = select(&[], 10, None).expect("all");
        let mut names: Vec<_> = cases.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), all(10).len());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), cases.len());
    }

    #[test]
    fn unknown_case_is_refused_with_the_known_ones() {
        let reason = select(&["pairs".to_owned()], 10, None).expect_err("unknown");
        assert!(reason.contains("`pairs`") && reason.contains("pairs-qos0"), "{reason}");
    }

    #[test]
    fn window_applies_to_flows_and_never_takes_it_from_qos_1() {
        let name = |name: &str| vec![name.to_owned()];
        let cases = select(&name("pairs-qos0"), 10, Some(0)).expect("open");
        assert!(matches!(&cases[0].work, Work::Flow(flow) if flow.window == 0));
        assert!(select(&name("pairs-qos1"), 10, Some(0)).is_err());
    }

    #[test]
    fn shapes_count_and_name() {
        assert_eq!((Shape::FanOut(100).publishers(), Shape::FanOut(100).copies()), (1, 100));
        assert_eq!((Shape::FanIn(100).subscribers(), Shape::FanIn(100).copies()), (1, 1));
        let flow = |shape, topics| Flow { shape, qos: 0, payload: 64, window: 1, pace: None, topics };
        assert_eq!(flow(Shape::Pairs(10), 1).filter(3), "bench/03");
        assert_eq!(flow(Shape::FanIn(10), 1).filter(0), "bench/+");
        assert_eq!(flow(Shape::Pairs(10), 1).topics(3), ["bench/03"]);
        assert_eq!(flow(Shape::Pairs(10), 2).filter(3), "bench/03/+");
        assert_eq!(flow(Shape::Pairs(10), 2).topics(3), ["bench/03/000", "bench/03/001"]);
    }
}
