//! The text files of the repository, read once and shared by the chores.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders with generated files.
const MADE_BY_TOOLS: &[&str] = &[
    ".git",
    ".peers",
    "__pycache__",
    "artifacts",
    "braidmq-data",
    "corpus",
    "coverage",
    "node_modules",
    "target",
];

/// Text files, by the end of their names.
const TEXT: &[&str] = &[
    "Makefile", "css", "html", "js", "md", "mjs", "py", "rs", "run", "sh", "toml", "ts", "txt", "yaml", "yml",
];

/// One text file.
#[derive(Clone, Debug)]
pub(crate) struct TextFile {
    /// Path from the root, with `/` between the parts.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The repository as a list of its text files, sorted by path.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) files: Vec<TextFile>,
}

impl Tree {
    /// Reads every text file under `root`.
    ///
    /// # Errors
    /// One line that names the folder or file that could not be read.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let mut files = Vec::new();
        collect(root, root, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { files })
    }

    pub(crate) fn file(&self, path: &str) -> Option<&TextFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The files whose path starts with one of `prefixes` and whose name ends in `.{extension}`.
    pub(crate) fn under<'a>(
        &'a self,
        prefixes: &'a [&'a str],
        extension: &'a str,
    ) -> impl Iterator<Item = &'a TextFile> {
        self.files.iter().filter(move |file| {
            prefixes.iter().any(|prefix| file.path.starts_with(prefix))
                && file.path.rsplit_once('.').is_some_and(|(_, end)| end == extension)
        })
    }

    /// A tree of made-up files.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files
            .iter()
            .map(|(path, text)| TextFile { path: (*path).into(), text: (*text).into() })
            .collect();
        Self { files }
    }
}

/// The root of this repository.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<TextFile>) -> Result<(), String> {
    let entries =
        fs::read_dir(folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    for entry in entries {
        let entry = entry.map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
        let kind =
            entry.file_type().map_err(|error| format!("cannot read {}: {error}", entry.path().display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if kind.is_dir() && !MADE_BY_TOOLS.contains(&name.as_str()) {
            collect(root, &entry.path(), files)?;
        } else if kind.is_file() && is_text(&name) {
            let path = entry.path();
            let text = fs::read_to_string(&path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            let path = path.strip_prefix(root).unwrap_or(&path);
            let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
            files.push(TextFile { path: parts.join("/"), text });
        }
    }
    Ok(())
}

fn is_text(name: &str) -> bool {
    let end = name.rsplit_once('.').map_or(name, |(_, end)| end);
    TEXT.contains(&end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_texts_and_leaves_out_what_tools_made() {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in [("a/b.rs", "x"), ("target/c.rs", "y"), ("Makefile", "z"), ("a/d.png", "p")] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let tree = Tree::read(folder.path()).unwrap();
        let paths: Vec<_> = tree.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["Makefile", "a/b.rs"]);
        assert_eq!(tree.under(&["a/"], "rs").count(), 1);
    }

    #[test]
    fn a_missing_root_is_one_clear_line() {
        let error = Tree::read(Path::new("no/such/folder")).unwrap_err();
        assert!(error.starts_with("cannot list no/such/folder: "), "{error}");
    }
}
