//! Seeds of random choices. A test that failed can be repeated with the same ones.

use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// The seed of one execution of a test. It is printed, and `CUELINE_TEST_SEED` sets it.
#[derive(Debug, Clone, Copy)]
pub struct Seed(pub u64);

impl Seed {
    /// `CUELINE_TEST_SEED`, else a new seed.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is where a new seed comes from"
    )]
    pub fn random(test: &str) -> Self {
        Self::print(test, Self::given().unwrap_or_else(rand::random))
    }

    /// `CUELINE_TEST_SEED`, else `default`. For a long test with few random choices, which does the same each time by default.
    pub fn fixed(test: &str, default: u64) -> Self {
        Self::print(test, Self::given().unwrap_or(default))
    }

    fn given() -> Option<u64> {
        std::env::var("CUELINE_TEST_SEED").ok()?.parse().ok()
    }

    fn print(test: &str, seed: u64) -> Self {
        println!("{test}: CUELINE_TEST_SEED={seed}");
        Self(seed)
    }

    /// A generator of random numbers.
    pub fn rng(self) -> StdRng {
        StdRng::seed_from_u64(self.0)
    }
}
