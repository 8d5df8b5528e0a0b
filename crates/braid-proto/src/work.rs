//! Step counter for tests of algorithmic cost, deterministic where a time is not.
//!
//! A step is an access to one stream, lane or exchange. Steps are counted in unit tests only.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts a step.
#[cfg(test)]
pub(crate) fn step() {
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// Counts nothing.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn step() {}

/// Number of steps that `work` takes.
#[cfg(test)]
pub(crate) fn steps(work: impl FnOnce()) -> u64 {
    let before = STEPS.with(std::cell::Cell::get);
    work();
    STEPS.with(std::cell::Cell::get) - before
}
