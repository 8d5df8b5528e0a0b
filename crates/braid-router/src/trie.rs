//! Trie of the wildcard patterns, with a node for each level.
//!
//! The nodes are in one arena and refer to each other by index. The literal children of all nodes are in one
//! hash table keyed by (parent, level): a node with one child needs no map of its own, and a node with a
//! million children is as fast. `+` is a link in its parent, `#` a value in its parent.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// Index of a node in the arena.
type NodeId = u32;

const ROOT: NodeId = 0;
/// No node. The root is no child, so that its index is free.
const NONE: NodeId = ROOT;

#[derive(Debug)]
struct Node<V> {
    /// Value of the pattern that ends with this level.
    here: Option<Box<V>>,
    /// Value of the pattern that ends with a `#` below this level.
    below: Option<Box<V>>,
    /// `None` for a `+`.
    label: Option<Label>,
    parent: NodeId,
    /// `+` child.
    plus: NodeId,
    /// Number of entries of [`Trie::edges`] with this parent.
    literals: u32,
}

impl<V> Node<V> {
    fn new(parent: NodeId, label: Option<Label>) -> Self {
        Self { here: None, below: None, label, parent, plus: NONE, literals: 0 }
    }

    fn is_unused(&self) -> bool {
        self.here.is_none() && self.below.is_none() && self.plus == NONE && self.literals == 0
    }
}

/// Edge to a literal child, with its hash, so that growing the table reads no node.
#[derive(Debug)]
struct Edge {
    hash: u64,
    child: NodeId,
}

/// One level of the Topic Name, as a range of its bytes.
#[derive(Clone, Copy, Debug)]
struct Level {
    start: usize,
    end: usize,
    hash: u64,
}

/// Working memory of [`Trie::visit`], kept by the caller so that a match allocates nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    /// Levels reached so far.
    levels: Vec<Level>,
    /// Nodes to visit, each with the number of levels above it; at most one for each level.
    pending: Vec<(NodeId, usize)>,
}

impl Walk {
    pub(crate) fn with_capacity(levels: usize) -> Self {
        Self { levels: Vec::with_capacity(levels), pending: Vec::with_capacity(levels + 1) }
    }
}

/// Map from wildcard patterns to `V` that finds every pattern which a Topic Name matches.
#[derive(Debug)]
pub(crate) struct Trie<V, S = DefaultHashBuilder> {
    nodes: Vec<Node<V>>,
    /// Free indices of [`Trie::nodes`].
    free: Vec<NodeId>,
    edges: HashTable<Edge>,
    /// Keyed hash: topics come from untrusted clients.
    hasher: S,
    len: usize,
}

impl<V, S: BuildHasher + Default> Trie<V, S> {
    pub(crate) fn new() -> Self {
        Self {
            nodes: vec![Node::new(ROOT, None)],
            free: Vec::new(),
            edges: HashTable::new(),
            hasher: S::default(),
            len: 0,
        }
    }

    /// Number of patterns.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, pattern: &str) -> Option<&V> {
        let (id, below) = self.locate(pattern)?;
        let node = self.node(id);
        if below { node.below.as_deref() } else { node.here.as_deref() }
    }

    pub(crate) fn get_mut(&mut self, pattern: &str) -> Option<&mut V> {
        let (id, below) = self.locate(pattern)?;
        self.value_mut(id, below).as_deref_mut()
    }

    pub(crate) fn at_or_default(&mut self, pattern: &str) -> &mut V
    where
        V: Default,
    {
        let (path, below) = split_multi_level(pattern);
        let mut id = ROOT;
        for level in path.into_iter().flat_map(|path| path.split('/')) {
            id = match self.child(id, level) {
                NONE => self.grow(id, level),
                child => child,
            };
        }
        if self.value_mut(id, below).is_none() {
            self.len += 1;
        }
        self.value_mut(id, below).get_or_insert_default()
    }

    /// Removes a pattern and every node that only it needed.
    pub(crate) fn remove(&mut self, pattern: &str) -> Option<V> {
        let (id, below) = self.locate(pattern)?;
        let value = self.value_mut(id, below).take()?;
        self.len -= 1;
        if self.len == 0 {
            *self = Self::new(); // Frees a large arena.
        } else {
            self.prune(id);
        }
        Some(*value)
    }

    /// Calls `found` with the value of each pattern that `name` matches: parents before children, `+`
    /// behind its literal sibling. Returns the number of visited nodes, which may be large where nothing matches.
    ///
    /// Costs at most one visit per node of the trie and no recursion: a topic of 200 levels needs 200
    /// entries in `walk`, nothing more.
    pub(crate) fn visit(&self, name: &str, walk: &mut Walk, mut found: impl FnMut(&V)) -> usize {
        let bytes = name.as_bytes();
        // [MQTT-4.7.2-1] Wildcards in the first level do not match a name that begins with `$`.
        let dollar = bytes.first() == Some(&b'$');
        walk.levels.clear();
        walk.pending.clear();
        walk.pending.push((ROOT, 0));
        let mut visited = 0;
        while let Some((mut id, mut depth)) = walk.pending.pop() {
            loop {
                visited += 1;
                let node = self.node(id);
                let wildcards = depth > 0 || !dollar;
                if let Some(value) = &node.below
                    && wildcards
                {
                    found(value); // [MQTT-4.7.1-1] `#` is the parent level too.
                }
                let Some(level) = self.level(bytes, depth, &mut walk.levels) else {
                    if let Some(value) = &node.here {
                        found(value);
                    }
                    break;
                };
                depth += 1;
                if node.plus != NONE && wildcards {
                    walk.pending.push((node.plus, depth));
                }
                if node.literals == 0 {
                    break;
                }
                id = self.literal(id, &bytes[level.start..level.end], level.hash);
                if id == NONE {
                    break;
                }
            }
        }
        visited
    }

    /// Level below `depth` others; `None` behind the last. Only levels that a pattern reaches are split off
    /// and hashed.
    #[inline]
    fn level(&self, name: &[u8], depth: usize, levels: &mut Vec<Level>) -> Option<Level> {
        if let Some(level) = levels.get(depth) {
            return Some(*level);
        }
        let start = levels.last().map_or(0, |last| last.end + 1);
        let rest = name.get(start..)?;
        let end = rest.iter().position(|byte| *byte == b'/').map_or(name.len(), |at| start + at);
        let level = Level { start, end, hash: self.hasher.hash_one(&name[start..end]) };
        levels.push(level);
        Some(level)
    }

    fn node(&self, id: NodeId) -> &Node<V> {
        &self.nodes[id as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node<V> {
        &mut self.nodes[id as usize]
    }

    fn value_mut(&mut self, id: NodeId, below: bool) -> &mut Option<Box<V>> {
        let node = self.node_mut(id);
        if below { &mut node.below } else { &mut node.here }
    }

    /// Node of a pattern, and whether the pattern is its `#`.
    fn locate(&self, pattern: &str) -> Option<(NodeId, bool)> {
        let (path, below) = split_multi_level(pattern);
        let mut id = ROOT;
        for level in path.into_iter().flat_map(|path| path.split('/')) {
            id = match self.child(id, level) {
                NONE => return None,
                child => child,
            };
        }
        Some((id, below))
    }

    fn child(&self, id: NodeId, level: &str) -> NodeId {
        if level == "+" {
            self.node(id).plus
        } else {
            self.literal(id, level.as_bytes(), self.hasher.hash_one(level.as_bytes()))
        }
    }

    #[inline]
    fn literal(&self, parent: NodeId, level: &[u8], level_hash: u64) -> NodeId {
        let hash = self.edge_hash(parent, level_hash);
        let edge = self.edges.find(hash, |edge| {
            edge.hash == hash && {
                let node = self.node(edge.child);
                node.parent == parent && node.label.as_ref().is_some_and(|label| label.as_bytes() == level)
            }
        });
        edge.map_or(NONE, |edge| edge.child)
    }

    fn edge_hash(&self, parent: NodeId, level_hash: u64) -> u64 {
        self.hasher.hash_one(level_hash ^ u64::from(parent).rotate_left(32))
    }

    fn grow(&mut self, parent: NodeId, level: &str) -> NodeId {
        let label = (level != "+").then(|| Label::new(level.as_bytes()));
        let literal = label.is_some();
        let node = Node::new(parent, label);
        let id = if let Some(id) = self.free.pop() {
            *self.node_mut(id) = node;
            id
        } else {
            self.nodes.push(node);
            #[expect(clippy::cast_possible_truncation, reason = "2^32 nodes are 240 GB: memory ends first")]
            let id = (self.nodes.len() - 1) as NodeId;
            id
        };
        if literal {
            let hash = self.edge_hash(parent, self.hasher.hash_one(level.as_bytes()));
            self.edges.insert_unique(hash, Edge { hash, child: id }, |edge| edge.hash);
            self.node_mut(parent).literals += 1;
        } else {
            self.node_mut(parent).plus = id;
        }
        id
    }

    fn prune(&mut self, mut id: NodeId) {
        while id != ROOT && self.node(id).is_unused() {
            let Node { label, parent, .. } = std::mem::replace(self.node_mut(id), Node::new(ROOT, None));
            if let Some(label) = label {
                let hash = self.edge_hash(parent, self.hasher.hash_one(label.as_bytes()));
                if let Ok(edge) = self.edges.find_entry(hash, |edge| edge.child == id) {
                    edge.remove();
                    self.node_mut(parent).literals -= 1;
                }
            } else {
                self.node_mut(parent).plus = NONE;
            }
            self.free.push(id);
            id = parent;
        }
    }
}

/// Pattern without its `#`, and whether it had one. `#` alone has no levels above it, which is not the
/// same as one empty level.
fn split_multi_level(pattern: &str) -> (Option<&str>, bool) {
    match pattern.strip_suffix('#') {
        None => (Some(pattern), false),
        Some(path) => (path.strip_suffix('/'), true),
    }
}

/// Maximum bytes of a level that is stored inline: a [`Label`] is then as large as a `Box<[u8]>` with its tag.
const INLINE: usize = 22;

/// Text of one level.
#[derive(Debug)]
enum Label {
    /// Up to [`INLINE`] bytes.
    Short { len: u8, bytes: [u8; INLINE] },
    /// Longer levels.
    Long(Box<[u8]>),
}

impl Label {
    fn new(level: &[u8]) -> Self {
        match u8::try_from(level.len()) {
            Ok(len) if level.len() <= INLINE => {
                let mut bytes = [0; INLINE];
                bytes[..level.len()].copy_from_slice(level);
                Self::Short { len, bytes }
            }
            _ => Self::Long(level.into()),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<S: BuildHasher + Default>(trie: &Trie<String, S>, name: &str) -> Vec<String> {
        let mut values = Vec::new();
        trie.visit(name, &mut Walk::default(), |value| values.push(value.clone()));
        values
    }

    fn trie(patterns: &[&str]) -> Trie<String> {
        filled(Trie::new(), patterns)
    }

    fn filled<S: BuildHasher + Default>(mut trie: Trie<String, S>, patterns: &[&str]) -> Trie<String, S> {
        for pattern in patterns {
            *trie.at_or_default(pattern) = (*pattern).to_owned();
        }
        trie
    }

    #[test]
    fn visits_parents_first_and_literals_before_plus() {
        let trie = trie(&["+/+", "a/+", "a/#", "#", "+/b", "+/#", "/#", "a/b/#", "a/b/+"]);
        assert_eq!(found(&trie, "a/b"), ["#", "a/#", "a/b/#", "a/+", "+/#", "+/b", "+/+"]);
        assert_eq!(found(&trie, "a"), ["#", "a/#", "+/#"]);
        assert_eq!(found(&trie, "/b"), ["#", "/#", "+/#", "+/b", "+/+"]);
    }

    #[test]
    fn a_removed_pattern_leaves_no_node() {
        let mut trie = trie(&["a/+/c", "a/+/d/#", "a/#", "+"]);
        let nodes = trie.nodes.len();
        assert_eq!(trie.remove("a/+/d/#").as_deref(), Some("a/+/d/#"));
        assert_eq!(trie.remove("a/+/d/#"), None);
        assert_eq!(trie.remove("a/+"), None);
        assert_eq!((trie.free.len(), trie.edges.len()), (1, 2));
        assert_eq!(trie.remove("a/+/c").as_deref(), Some("a/+/c"));
        assert_eq!((trie.free.len(), trie.edges.len(), trie.len()), (3, 1, 2));
        assert_eq!(found(&trie, "a/b/c"), ["a/#"]);
        trie.at_or_default("x/y/+");
        assert_eq!(trie.nodes.len(), nodes, "free nodes are used again");
        trie.remove("x/y/+");
        trie.remove("a/#");
        trie.remove("+");
        assert_eq!((trie.nodes.len(), trie.free.len(), trie.edges.len(), trie.len()), (1, 0, 0, 0));
    }

    /// Two levels with one hash stay apart: a collision must not lead to the topics of others.
    #[test]
    fn colliding_levels_stay_apart() {
        #[derive(Default)]
        struct Collide;
        impl std::hash::Hasher for Collide {
            fn finish(&self) -> u64 {
                0
            }
            fn write(&mut self, _: &[u8]) {}
        }
        let patterns = ["a/b/+", "b/a/+", "a/a/+", "A/b/+", "b/#", "c/#"];
        let mut trie = filled(Trie::<_, std::hash::BuildHasherDefault<Collide>>::new(), &patterns);
        assert_eq!(found(&trie, "a/b/x"), ["a/b/+"]);
        assert_eq!(found(&trie, "b/a/x"), ["b/#", "b/a/+"]);
        assert_eq!(found(&trie, "b/b/x"), ["b/#"]);
        assert_eq!(trie.remove("b/a/+").as_deref(), Some("b/a/+"));
        assert_eq!(trie.remove("b/b/+"), None);
        assert_eq!(found(&trie, "a/a/x"), ["a/a/+"]);
        assert_eq!(found(&trie, "b/a/x"), ["b/#"]);
    }

    #[test]
    fn a_node_is_less_than_a_cache_line() {
        assert!(size_of::<Node<String>>() <= 56, "{}", size_of::<Node<String>>());
    }

    #[test]
    fn a_label_keeps_every_length() {
        for len in 0..=2 * INLINE {
            let level = vec![b'x'; len];
            assert_eq!(Label::new(&level).as_bytes(), level);
            assert_eq!(matches!(Label::new(&level), Label::Long(_)), len > INLINE);
        }
        assert_eq!(size_of::<Label>(), 24);
    }
}
