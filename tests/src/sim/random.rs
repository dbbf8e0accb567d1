//! The one source of chance of a simulated run: everything follows from its seed.

/// A small, fast generator (xoshiro256++, seeded by splitmix64); not for secrets.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The sequence that belongs to `seed`.
    pub fn new(seed: u64) -> Random {
        let mut word = seed;
        let mut next = || {
            word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = word;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Random { state: [next(), next(), next(), next()] }
    }

    /// A generator of its own for one part of the run, so that a draw more in one part does not shift the others.
    pub fn fork(&mut self) -> Random {
        Random::new(self.word())
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let out = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let [mut a, mut b, mut c, mut d] = [a, b, c, d];
        let shifted = b << 17;
        c ^= a;
        d ^= b;
        b ^= c;
        a ^= d;
        c ^= shifted;
        d = d.rotate_left(45);
        self.state = [a, b, c, d];
        out
    }

    /// A number in `0..below`.
    ///
    /// # Panics
    /// If `below` is 0.
    pub fn below(&mut self, below: u64) -> u64 {
        assert!(below > 0, "nothing to choose from");
        // The bias of the remainder is below 2^-40 for every range used here.
        self.word() % below
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// An index into a list of `len` things.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Whether something that happens `per_million` times in a million happens now.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(per_million)
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_names_one_sequence_and_another_seed_another() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.word()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn a_chance_comes_about_as_often_as_it_says() {
        let mut random = Random::new(7);
        let hits = (0..100_000).filter(|_| random.chance(250_000)).count();
        assert!((24_000..26_000).contains(&hits), "{hits} of 100000");
    }
}
