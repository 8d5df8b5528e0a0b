//! Tables with any rows.

use redb::{Database, Key, TableDefinition, Value, WriteTransaction};

use super::device::Devices;
use super::{check_sound, offline, open};

/// The bytes are rows: a byte for the table, one for the length of the key, two for that of the value, key and value.
/// The tables are read without a panic and, if no fault is found, are a sound store.
pub fn stored_rows(data: &[u8]) {
    let device = Devices::default();
    write(&device, data).expect("memory does not fail");
    let store = offline(&device);
    let check = store.check().expect("memory does not fail");
    // May be refused, and must not panic.
    let (_, exported) = (store.stats(), store.export(&mut std::io::sink()));
    drop(store);
    if check.problems.is_empty() {
        exported.expect("it is sound");
        check_sound(&device);
    } else if let Ok(store) = open(&device) {
        let _ = braid_store::Store::recover(&store, &mut braid_store::RecoveredState::default());
    }
}

fn write(device: &Devices, data: &[u8]) -> Result<(), redb::Error> {
    let database = Database::builder().create_with_backend(device.tables.clone())?;
    let transaction = database.begin_write()?;
    transaction.open_table(TableDefinition::<&str, u64>::new("meta"))?.insert("format", 1)?;
    let mut rest = data;
    while let Some((row, after)) = split(rest) {
        put(&transaction, &row)?;
        rest = after;
    }
    Ok(transaction.commit()?)
}

struct Row<'a> {
    table: u8,
    key: &'a [u8],
    value: &'a [u8],
}

fn split(data: &[u8]) -> Option<(Row<'_>, &[u8])> {
    let (&[table, key, high, low], rest) = data.split_first_chunk()?;
    let (key, rest) = rest.split_at(usize::from(key).min(rest.len()));
    let (value, rest) = rest.split_at(usize::from(u16::from_be_bytes([high, low])).min(rest.len()));
    Some((Row { table, key, value }, rest))
}

fn put(transaction: &WriteTransaction, row: &Row<'_>) -> Result<(), redb::Error> {
    match row.table % 10 {
        0 => {
            let name = if row.key.is_empty() { "next_session" } else { "next_lsn" };
            let number = u64::from_be_bytes(*<&[u8; 8]>::from_bytes(&sized::<&[u8; 8]>(row.value)));
            transaction.open_table(TableDefinition::<&str, u64>::new("meta"))?.insert(name, number)?;
            Ok(())
        }
        1 => insert::<&[u8; 8], &[u8]>(transaction, "session", row),
        2 => insert::<&[u8; 8], &[u8]>(transaction, "will", row),
        3 => insert::<&[u8; 8], &[u8]>(transaction, "message", row),
        4 => insert::<&[u8], &[u8]>(transaction, "subscription", row),
        5 => insert::<&[u8; 10], &[u8; 2]>(transaction, "received", row),
        6 => insert::<&[u8; 16], &[u8]>(transaction, "queue", row),
        7 => insert::<&[u8; 16], &[u8; 11]>(transaction, "inflight", row),
        9 => insert::<&[u8; 12], &[u8]>(transaction, "part", row),
        _ => insert::<&[u8], &[u8; 8]>(transaction, "retained", row),
    }
}

fn insert<K: Key + 'static, V: Value + 'static>(
    transaction: &WriteTransaction,
    name: &str,
    row: &Row<'_>,
) -> Result<(), redb::Error> {
    let (key, value) = (sized::<K>(row.key), sized::<V>(row.value));
    transaction
        .open_table(TableDefinition::<K, V>::new(name))?
        .insert(K::from_bytes(&key), V::from_bytes(&value))?;
    Ok(())
}

/// Last bytes of a value of fixed width, with zeros before them: a short key is a small number.
fn sized<V: Value>(bytes: &[u8]) -> Vec<u8> {
    let Some(width) = V::fixed_width() else { return bytes.to_vec() };
    let bytes = &bytes[bytes.len().saturating_sub(width)..];
    [&vec![0; width - bytes.len()], bytes].concat()
}
