//! `Debug` of fields that logs and error texts must not show: passwords and Authentication Data.

use std::fmt;

use bytes::Bytes;

/// `Debug` of an optional secret: shows whether there is one, and neither its bytes nor their number.
pub(super) struct Hidden<'a>(pub(super) &'a Option<Bytes>);

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Some([hidden])" } else { "None" })
    }
}

/// Implements `Debug` of a struct by its fields, those behind the semicolon hidden. A field that is missing here does
/// not compile.
macro_rules! debug_hiding {
    ($name:ident: $($field:ident),+; $($hidden:ident),+) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let Self { $($field,)+ $($hidden),+ } = self;
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($field), $field))+
                    $(.field(stringify!($hidden), &$crate::packet::secret::Hidden($hidden)))+
                    .finish()
            }
        }
    };
}
pub(super) use debug_hiding;
