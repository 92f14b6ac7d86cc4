//! Recognises a schema that other migrations have made than those of this program. A migration is never edited after a
//! release, so such a schema comes from a build that was never released.

use super::convert::sha256_hex;
use crate::{ErrorKind, StoreError};

/// An applied migration as it is stored: its number, from 1, and the SHA-256 of its SQL.
pub type AppliedMigration = (i64, String);

/// What a store keeps of an applied migration.
pub fn migration_hash(sql: &str) -> String {
    sha256_hex(sql)
}

/// Compares the first `applied` migrations of this program with those that were applied. Those that this program does not
/// know are of a newer one, and are not compared.
///
/// # Errors
///
/// [`ErrorKind::Broken`] if one of them was another one, or if nothing is known of it.
pub fn check_applied(
    migrations: &[&str],
    applied: usize,
    stored: &[AppliedMigration],
) -> Result<(), StoreError> {
    for (sql, number) in migrations.iter().zip(1_i64..).take(applied) {
        let hash = migration_hash(sql);
        let is_same = |(stored_number, stored_hash): &AppliedMigration| {
            *stored_number == number && *stored_hash == hash
        };
        if !stored.iter().any(is_same) {
            return Err(StoreError::new(
                ErrorKind::Broken,
                format!(
                    "failed to open the store: an unreleased build has made it, whose migration {number} is not that of this program; start with an empty database, and apply the jobs again"
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_migrations_that_were_applied_are_compared() {
        let migrations = ["CREATE TABLE a (x int)", "CREATE TABLE b (x int)"];
        let hash = |index: usize| migration_hash(migrations[index]);
        let newer = (3, "of a newer program".to_owned());
        let both = [(1, hash(0)), (2, hash(1)), newer];
        assert!(check_applied(&migrations, 3, &both).is_ok());
        assert!(check_applied(&migrations, 1, &both[..1]).is_ok());
        assert!(check_applied(&migrations, 0, &[]).is_ok());
        for edited in [vec![], vec![(1, hash(1))], vec![(2, hash(0))]] {
            let error = check_applied(&migrations, 1, &edited).expect_err("is refused");
            assert_eq!(error.kind(), ErrorKind::Broken);
            assert!(error.to_string().contains("migration 1"), "{error}");
        }
    }
}
