//! Several senders side by side: in interleaved rounds and random order, each with two lengths, whose difference leaves
//! its start-up out.

use anyhow::Result;
use measure::order::Seed;

use crate::arena::Arena;
use crate::ground::Ground;
use crate::sender::{Sender, Usage};
use crate::table::Row;

/// How much is sent.
#[derive(Debug, Clone, Copy)]
pub struct Rounds {
    /// Rounds, each with every sender once.
    pub rounds: u32,
    /// Packets of the longer of the two lengths; the shorter is a ninth of it.
    pub packets: u64,
    /// Seed of the order.
    pub seed: u64,
}

impl Rounds {
    /// Runs them; fewer if a signal asks for the end.
    ///
    /// # Errors
    /// A sender that fails.
    pub fn run(&self, senders: &mut [Sender], arena: &Arena, ground: &Ground) -> Result<Vec<Row>> {
        let mut rows: Vec<Row> = senders.iter().map(|sender| Row::new(sender.name())).collect();
        let mut order = Seed(self.seed).order();
        let mut places: Vec<usize> = (0..senders.len()).collect();
        // The first round warms up and is thrown away.
        for round in 0..=self.rounds {
            order.shuffle(&mut places);
            for &place in &places {
                let long_first = order.pair_order();
                let both = both(&mut senders[place], arena, self.packets, long_first)?;
                if round > 0 {
                    rows[place].add(both.as_ref());
                }
            }
            if ground.interrupted() {
                break;
            }
        }
        Ok(rows)
    }
}

/// The long and the short run of one sender; none if one of them hung.
fn both(sender: &mut Sender, arena: &Arena, packets: u64, long_first: bool) -> Result<Option<[Usage; 2]>> {
    let long = packets * sender.factor();
    let short = long / 9;
    let (first, second) = if long_first { (long, short) } else { (short, long) };
    let Some(first) = sender.run(arena, first)? else { return Ok(None) };
    let Some(second) = sender.run(arena, second)? else { return Ok(None) };
    Ok(Some(if long_first { [first, second] } else { [second, first] }))
}
