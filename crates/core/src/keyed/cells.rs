//! The memory of the keys' words: one flat array of cells of fixed size.
//!
//! A cell is a *mark* and the words of the limits. Four cells are a *block*: first their marks, then their words. So
//! with one limit of one word, a block is one cache line. Several blocks are a *region*. A key's fingerprint determines
//! its region, the first block of its *path* through the region, and the step between the blocks of the path. The
//! number of blocks in a region is a prime, so the path visits every block. Used cells never become empty again, so a
//! path ends at the first block with an empty cell.

use std::ops::Range;

use super::pages;
use crate::sync::{AtomicU64, Ordering};

/// The mark of a cell that never had a key.
pub(super) const EMPTY: u64 = 0;

/// The mark of a cell whose key was forgotten. Paths continue behind such a cell.
pub(super) const VACANT: u64 = 1;

/// The bit of a mark while its key is being forgotten.
pub(super) const EVICTING: u64 = 1 << 63;

/// The number of cells in a block.
const BLOCK: usize = 4;

/// The largest number of blocks in a region, a prime. Under loom, a few keys must fill more than one region.
const REGION: usize = if cfg!(loom) { 1 } else { 1021 };

/// The largest number of words of all cells, before rounding up: 1 GiB. The system provides the memory only when it is
/// used.
const MOST: usize = 1 << 27;

/// An array of cells.
#[derive(Debug)]
pub(super) struct Cells {
    words: Vec<AtomicU64>,
    /// The index of the first word at the start of a cache line.
    start: usize,
    /// The number of words in a cell, without the mark.
    width: usize,
    blocks: usize,
    regions: usize,
}

/// A cell for one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyCell<'a> {
    /// The index of the cell in the array.
    pub(super) index: usize,
    pub(super) mark: &'a AtomicU64,
    pub(super) words: &'a [AtomicU64],
}

/// Returns the fingerprint of a key from its seeded hash: the mark of its cell.
#[inline(always)]
pub(super) fn fingerprint(hash: u64) -> u64 {
    (hash & !EVICTING).max(VACANT + 1)
}

/// Returns true if this mark is the fingerprint of a key.
pub(super) fn is_key(mark: u64) -> bool {
    mark > VACANT
}

impl Cells {
    /// Returns the largest number of keys with words of this width that fit into a table.
    pub(super) fn most(width: usize) -> usize {
        (MOST / (width + 1) / 10 * 9).max(1)
    }

    /// Returns cells for this many keys and a ninth more, which keeps paths short.
    pub(super) fn new(keys: usize, width: usize) -> Self {
        let blocks = (keys + keys / 9 + 1).div_ceil(BLOCK);
        let regions = blocks.div_ceil(REGION);
        let blocks = next_prime(blocks.div_ceil(regions));
        // The allocator provides zeros as untouched memory, and the conversion costs nothing.
        let mut zeros = vec![0; regions * blocks * BLOCK * (width + 1) + CACHE_LINE];
        pages::ask_for_large(&mut zeros);
        let words: Vec<_> = zeros.into_iter().map(AtomicU64::new).collect();
        let start = words.as_ptr().align_offset(CACHE_LINE * size_of::<u64>());
        Self { start: if start < CACHE_LINE { start } else { 0 }, words, width, blocks, regions }
    }

    pub(super) fn regions(&self) -> usize {
        self.regions
    }

    #[inline(always)]
    pub(super) fn region_of(&self, fingerprint: u64) -> usize {
        part(fingerprint >> 31, self.regions)
    }

    /// Returns the region of a key, from the 32 bits of its fingerprint that determine the region.
    pub(super) fn region_of_tag(&self, tag: u32) -> usize {
        part(u64::from(tag), self.regions)
    }

    /// Returns the regions of this table that can have the keys of `region` in a table with `others` regions.
    pub(super) fn regions_of(&self, region: usize, others: usize) -> Range<usize> {
        region * self.regions / others..((region + 1) * self.regions).div_ceil(others)
    }

    /// Returns the blocks where a key can be, nearest first.
    #[inline(always)]
    pub(super) fn path(&self, fingerprint: u64) -> impl Iterator<Item = Block<'_>> {
        let mut block = part(fingerprint & 0xffff_ffff, self.blocks);
        let step = 1 + part((fingerprint & 0xffff) << 16, self.blocks.saturating_sub(1));
        let first = self.region_of(fingerprint) * self.blocks;
        (0..self.blocks).map(move |_| {
            let this = self.block(first + block);
            block += step;
            if block >= self.blocks {
                block -= self.blocks;
            }
            this
        })
    }

    /// Looks for a key in the nearest block of its path, for cells with one word. Returns the cell's index in the
    /// array, its mark and its word.
    #[inline(always)]
    pub(super) fn nearest(&self, fingerprint: u64) -> Option<(usize, &AtomicU64, &AtomicU64)> {
        let block = self.region_of(fingerprint) * self.blocks + part(fingerprint & 0xffff_ffff, self.blocks);
        let line: &[_; CACHE_LINE] = self.words.get(self.start..)?.as_chunks().0.get(block)?;
        let (marks, words) = line.split_at(BLOCK);
        let place = turns(fingerprint).find(|&place| marks[place].load(Ordering::Acquire) == fingerprint)?;
        Some((block * BLOCK + place, &marks[place], &words[place]))
    }

    /// Returns all cells of a region, starting from one of them, wrapping around.
    pub(super) fn round(&self, region: usize, from: usize) -> impl Iterator<Item = KeyCell<'_>> {
        let cells = self.blocks * BLOCK;
        (from..from + cells).map(move |cell| {
            let cell = cell % cells;
            self.block(region * self.blocks + cell / BLOCK).cell(cell % BLOCK)
        })
    }

    /// Returns this many consecutive cells, starting at a block that `from` determines, wrapping around.
    pub(super) fn run(&self, from: u64, most: usize) -> impl Iterator<Item = KeyCell<'_>> {
        let blocks = self.regions * self.blocks;
        let first = usize::try_from(from % blocks as u64).unwrap_or(0);
        let here = (first..first + blocks).map(move |block| self.block(block % blocks));
        here.flat_map(|block| (0..BLOCK).map(move |place| block.cell(place))).take(most)
    }

    #[inline(always)]
    fn block(&self, block: usize) -> Block<'_> {
        let words = BLOCK * (self.width + 1);
        let (marks, words) = self.words[self.start + block * words..][..words].split_at(BLOCK);
        Block { first: block * BLOCK, marks, words, width: self.width }
    }
}

/// Four cells that are searched together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'a> {
    first: usize,
    marks: &'a [AtomicU64],
    words: &'a [AtomicU64],
    width: usize,
}

impl<'a> Block<'a> {
    /// Returns the key's cell if it is in this block. Otherwise, the error is true if the key's path ends here.
    #[inline(always)]
    pub(super) fn find(&self, fingerprint: u64) -> Result<KeyCell<'a>, bool> {
        let mut ends = false;
        for place in turns(fingerprint) {
            let mark = self.marks[place].load(Ordering::Acquire);
            if mark == fingerprint {
                return Ok(self.cell(place));
            }
            ends |= mark == EMPTY;
        }
        Err(ends)
    }

    /// Returns the cells in the order in which a key takes them.
    pub(super) fn cells(self, fingerprint: u64) -> impl Iterator<Item = KeyCell<'a>> {
        turns(fingerprint).map(move |place| self.cell(place))
    }

    #[inline(always)]
    fn cell(&self, place: usize) -> KeyCell<'a> {
        let index = self.first + place;
        KeyCell { index, mark: &self.marks[place], words: &self.words[place * self.width..][..self.width] }
    }
}

/// Returns the order in which a key takes the cells of a block. Different keys start with different cells. So half of
/// all keys are in the cell that is read first. The processor speculates while that cell is loading, and is usually
/// right.
#[inline(always)]
fn turns(fingerprint: u64) -> impl Iterator<Item = usize> {
    let own = part(fingerprint << 30 & 0xffff_ffff, BLOCK);
    (0..BLOCK).map(move |turn| turn ^ own)
}

/// The number of words in a cache line.
const CACHE_LINE: usize = 8;

/// Maps numbers below 2^32 evenly to numbers below `parts`.
#[inline(always)]
pub(super) fn part(number: u64, parts: usize) -> usize {
    usize::try_from((number * parts as u64) >> 32).unwrap_or(0)
}

fn next_prime(from: usize) -> usize {
    let is_prime = |number: usize| (2..).take_while(|n| n * n <= number).all(|n| !number.is_multiple_of(n));
    (from..).find(|&number| is_prime(number)).expect("there is always a larger prime")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn wide_cells_lower_the_number_of_keys() {
        for width in [1, 2, 16, 1002, (1 << 20) + 2, 8 * ((1 << 20) + 2)] {
            let most = Cells::most(width);
            assert!(most > 0 && (most + most / 9) * (width + 1) <= MOST, "{most} of {width}");
        }
        assert!(Cells::most(1) > 60_000_000);
    }

    #[test]
    fn a_path_visits_every_block_of_a_region_once() {
        for keys in [1, 2, 7, 100, 4_000, 10_000] {
            let cells = Cells::new(keys, 3);
            assert!(cells.regions * cells.blocks * BLOCK > keys);
            for fingerprint in [2, 0x7fff_ffff_ffff_ffff, 0x1234_5678_9abc_def0] {
                let mut starts: Vec<_> = cells.path(fingerprint).map(|block| block.marks.as_ptr()).collect();
                starts.sort_unstable();
                starts.dedup();
                assert_eq!(starts.len(), cells.blocks, "{keys} keys");
            }
        }
    }
}
