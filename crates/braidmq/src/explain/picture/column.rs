//! Packets as columns: one each as long as they can be told apart, else all of a stretch of time together.

use super::super::number::float;
use super::super::packet::Packet;
use super::super::view::View;
use super::palette::Palette;

/// Up to so many packets have a column of their own.
const MOST_PACKETS: usize = 400;
/// No more columns of time than this.
const MOST_STRETCHES: f64 = 420.0;
/// A column is no wider.
const WIDEST: f64 = 22.0;

pub(super) struct Columns {
    pub(super) all: Vec<Column>,
    pub(super) width: f64,
    /// Milliseconds of one column; `None`: each is a packet.
    pub(super) stretch: Option<f64>,
    first: f64,
}

/// What left in one packet, or in one stretch of time.
#[derive(Default)]
pub(super) struct Column {
    /// Of the packet, or of the begin of the stretch, in milliseconds of the log.
    pub(super) time: f64,
    pub(super) packets: u64,
    /// The packet's number.
    pub(super) number: Option<u64>,
    /// Bytes by series.
    pub(super) bytes: Vec<u64>,
    pub(super) lost: u64,
    /// Packets in which bulk left while urgent bytes waited.
    pub(super) ahead: u64,
}

impl Columns {
    /// Columns that take up to `room` along the time.
    pub(super) fn of(view: &View<'_>, palette: &Palette, room: f64) -> Self {
        let packets = view.packets();
        let (first, last) = view.span();
        if packets.len() <= MOST_PACKETS {
            let mut all: Vec<Column> =
                packets.iter().map(|packet| Column::at(packet.time, palette)).collect();
            for (index, (column, packet)) in all.iter_mut().zip(packets).enumerate() {
                column.add(packet, view.is_ahead(index), palette);
                column.number = packet.number;
            }
            let width = (room / float(all.len().max(1) as u64)).min(WIDEST);
            return Self { all, width, stretch: None, first };
        }
        let stretch = nice_above((last - first) / MOST_STRETCHES).max(0.001);
        let mut columns = Self { all: Vec::new(), width: 0.0, stretch: Some(stretch), first };
        let count = columns.place_at(last, stretch) + 1;
        columns.all =
            (0..count).map(|place| Column::at(first + float(place as u64) * stretch, palette)).collect();
        columns.width = room / float(count as u64);
        for (index, packet) in packets.iter().enumerate() {
            let place = columns.place_at(packet.time, stretch);
            if let Some(column) = columns.all.get_mut(place) {
                column.add(packet, view.is_ahead(index), palette);
            }
        }
        columns
    }

    /// The column of a time.
    fn place_at(&self, time: f64, stretch: f64) -> usize {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most MOST_STRETCHES")]
        let place = ((time - self.first) / stretch).clamp(0.0, MOST_STRETCHES + 1.0) as usize;
        place
    }

    /// How far along a time is, from 0 on in the unit of `width`.
    pub(super) fn along(&self, time: f64) -> f64 {
        match self.stretch {
            Some(stretch) => (time - self.first) / stretch * self.width,
            None => self.width * float(self.all.partition_point(|column| column.time <= time) as u64),
        }
    }

    /// How far the last column goes.
    pub(super) fn end(&self) -> f64 {
        self.width * float(self.all.len() as u64)
    }

    /// Most bytes in a column.
    pub(super) fn highest(&self) -> u64 {
        self.all.iter().map(Column::total).max().unwrap_or(0)
    }
}

impl Column {
    fn at(time: f64, palette: &Palette) -> Self {
        Self { time, bytes: vec![0; palette.all().len()], ..Self::default() }
    }

    fn add(&mut self, packet: &Packet, is_ahead: bool, palette: &Palette) {
        self.packets += 1;
        self.lost += u64::from(packet.lost.is_some());
        self.ahead += u64::from(is_ahead);
        for frame in &packet.frames {
            let sum = &mut self.bytes[palette.place(frame.stream)];
            *sum = sum.saturating_add(frame.length);
        }
        let rest = packet.length() - packet.stream_bytes();
        let sum = &mut self.bytes[palette.no_stream()];
        *sum = sum.saturating_add(rest);
    }

    pub(super) fn total(&self) -> u64 {
        self.bytes.iter().copied().fold(0, u64::saturating_add)
    }
}

/// The next 1, 2 or 5 times a power of ten.
pub(super) fn nice_above(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    // A hair's breadth above is what rounding makes of the number itself.
    let nice = [1.0, 2.0, 5.0].into_iter().find(|step| step * power >= value * (1.0 - 1e-9));
    nice.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_numbers() {
        for (value, nice) in
            [(0.7, 1.0), (1.0, 1.0), (1.1, 2.0), (30.0, 50.0), (51.0, 100.0), (0.0021, 0.005)]
        {
            assert!((nice_above(value) - nice).abs() < 1e-12, "{value}");
        }
        assert!(nice_above(0.0) == 0.0);
    }
}
