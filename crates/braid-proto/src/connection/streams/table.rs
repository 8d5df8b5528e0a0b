use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::DataStream;
use crate::stream::StreamKey;
use crate::work;

/// The data streams of a connection. There is no way to walk through all of them: what is asked about all is kept as
/// a sum or a set, so that a peer with many streams makes nothing slower.
#[derive(Debug, Default)]
pub(super) struct Table(HashMap<StreamKey, Box<DataStream>, FxBuildHasher>);

impl Table {
    pub(super) fn find(&self, key: StreamKey) -> Option<&DataStream> {
        work::step();
        self.0.get(&key).map(|data| &**data)
    }

    pub(super) fn find_mut(&mut self, key: StreamKey) -> Option<&mut DataStream> {
        work::step();
        self.0.get_mut(&key).map(|data| &mut **data)
    }

    /// Adds a stream that is not there.
    pub(super) fn insert(&mut self, key: StreamKey, data: DataStream) {
        work::step();
        self.0.insert(key, Box::new(data));
    }

    pub(super) fn remove(&mut self, key: StreamKey) -> Option<Box<DataStream>> {
        work::step();
        let data = self.0.remove(&key);
        if self.0.is_empty() {
            self.0 = HashMap::default(); // An idle connection keeps no table.
        }
        data
    }

    /// For those who check the sums.
    #[cfg(debug_assertions)]
    pub(super) fn recount(&self) -> impl Iterator<Item = (StreamKey, &DataStream)> {
        self.0.iter().map(|(key, data)| (*key, &**data))
    }
}
