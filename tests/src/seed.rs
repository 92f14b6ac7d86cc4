//! Seeds of random choices. The seed of a failed test reproduces its choices.

use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// The seed of one execution of a test. It is printed; `CUELINE_TEST_SEED` overrides it.
#[derive(Debug, Clone, Copy)]
pub struct Seed(pub u64);

impl Seed {
    /// The seed in `CUELINE_TEST_SEED`, or a new one.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is where a new seed comes from"
    )]
    pub fn random(test: &str) -> Self {
        Self::print(test, Self::given().unwrap_or_else(rand::random))
    }

    /// The seed in `CUELINE_TEST_SEED`, or `default`. For a long test with few random choices, which by default makes
    /// the same choices each time.
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

    /// A random number generator with this seed.
    pub fn rng(self) -> StdRng {
        StdRng::seed_from_u64(self.0)
    }
}
