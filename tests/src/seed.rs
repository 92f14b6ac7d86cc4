//! Seeds: what was random in a test that failed can be had again.

use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// The seed of this run of a test: `CUELINE_TEST_SEED` if it is set, else a new one. It is printed.
#[derive(Debug, Clone, Copy)]
pub struct Seed(pub u64);

impl Seed {
    /// The seed for the test of that name.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is where a new seed comes from"
    )]
    pub fn of(test: &str) -> Self {
        let given = std::env::var("CUELINE_TEST_SEED")
            .ok()
            .and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(rand::random);
        println!("{test}: CUELINE_TEST_SEED={seed}");
        Self(seed)
    }

    /// `CUELINE_TEST_SEED` if it is set, else `usual`: for a test that is long and has few random choices, so that it does the same each time
    /// unless it is asked for something else.
    pub fn or(test: &str, usual: u64) -> Self {
        let given = std::env::var("CUELINE_TEST_SEED")
            .ok()
            .and_then(|text| text.parse().ok());
        let seed = given.unwrap_or(usual);
        println!("{test}: CUELINE_TEST_SEED={seed}");
        Self(seed)
    }

    /// Random numbers from this seed.
    pub fn rng(self) -> StdRng {
        StdRng::seed_from_u64(self.0)
    }
}
