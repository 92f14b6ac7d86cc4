//! Random bytes for secrets.

use rand::TryRng as _;

use crate::problem::Problem;

/// Random bytes of the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Problem> {
    let mut bytes = [0; N];
    rand::rngs::SysRng
        .try_fill_bytes(&mut bytes)
        .map_err(|error| {
            Problem::unavailable(format!(
                "failed to get random bytes from the system: {error}"
            ))
        })?;
    Ok(bytes)
}
