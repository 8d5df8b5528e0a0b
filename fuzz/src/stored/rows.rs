use redb::{Database, TableDefinition, WriteTransaction};

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
        put(&transaction, row)?;
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

fn put(transaction: &WriteTransaction, Row { table, key, value }: Row<'_>) -> Result<(), redb::Error> {
    match table % 10 {
        0 => {
            let name = if key.is_empty() { "next_session" } else { "next_lsn" };
            let number = u64::from_be_bytes(fixed(value));
            transaction.open_table(TableDefinition::<&str, u64>::new("meta"))?.insert(name, number)?;
        }
        1 => by_number(transaction, "session", key, value)?,
        2 => by_number(transaction, "will", key, value)?,
        3 => by_number(transaction, "message", key, value)?,
        4 => {
            let table = TableDefinition::<&[u8], &[u8]>::new("subscription");
            transaction.open_table(table)?.insert(key, value)?;
        }
        5 => {
            let table = TableDefinition::<&[u8; 10], &[u8; 2]>::new("received");
            transaction.open_table(table)?.insert(&fixed(key), &fixed(value))?;
        }
        6 => {
            let table = TableDefinition::<&[u8; 16], &[u8]>::new("queue");
            transaction.open_table(table)?.insert(&fixed(key), value)?;
        }
        7 => {
            let table = TableDefinition::<&[u8; 16], &[u8; 11]>::new("inflight");
            transaction.open_table(table)?.insert(&fixed(key), &fixed(value))?;
        }
        9 => {
            let table = TableDefinition::<&[u8; 12], &[u8]>::new("part");
            transaction.open_table(table)?.insert(&fixed(key), value)?;
        }
        _ => {
            let table = TableDefinition::<&[u8], &[u8; 8]>::new("retained");
            transaction.open_table(table)?.insert(key, &fixed(value))?;
        }
    }
    Ok(())
}

fn by_number(
    transaction: &WriteTransaction,
    name: &str,
    key: &[u8],
    value: &[u8],
) -> Result<(), redb::Error> {
    let table = TableDefinition::<&[u8; 8], &[u8]>::new(name);
    transaction.open_table(table)?.insert(&fixed(key), value)?;
    Ok(())
}

/// Last bytes, with zeros before them: a short key is a small number.
fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let bytes = &bytes[bytes.len().saturating_sub(N)..];
    let mut all = [0; N];
    all[N - bytes.len()..].copy_from_slice(bytes);
    all
}
