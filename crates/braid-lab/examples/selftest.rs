//! Prints what the laboratory says of this machine: `cargo run --release --example selftest [tun|packet] [SECONDS]`.

use std::time::Duration;

use braid_lab::selftest::{Options, run};
use braid_lab::testbed::{Entry, WireChoice, enter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Entry::Ended(code) = enter()? {
        std::process::exit(code);
    }
    let mut options = Options::default();
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "tun" => options.wire = WireChoice::Tun,
            "packet" => options.wire = WireChoice::Packet,
            "realtime" => options.realtime = true,
            seconds => options.cell = Duration::from_secs_f64(seconds.parse()?),
        }
    }
    let result = run(&options);
    for (name, value) in &result.figures {
        println!("{value:>12.1}  {name}");
    }
    for reason in &result.refused {
        println!("refused: {reason}");
    }
    Ok(())
}
