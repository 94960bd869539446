//! In which order packets of different weights come.

/// Smooth weighted round robin: over each period every packet comes as often as its weight says, and as evenly as
/// possible. In each step everyone gains its weight, the one that has most goes, and pays the sum of all weights.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) slots: Vec<Slot>,
    /// As they were given, divided by what is common to all.
    pub(crate) weights: Vec<u32>,
}

/// One place of a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Who goes.
    pub(crate) member: u32,
    /// How often it went before in this period.
    pub(crate) rank: u32,
}

impl Schedule {
    /// None if all weights are equal: then all go in turn.
    pub(crate) fn new(weights: &[u32]) -> Option<Self> {
        let mut weights = weights.to_vec();
        reduce(&mut weights);
        if weights.iter().all(|&weight| weight == 1) {
            return None;
        }
        let slots = slots(&weights);
        Some(Self { slots, weights })
    }
}

/// The length of a period.
pub(crate) fn period(weights: &[u32]) -> u64 {
    let mut weights = weights.to_vec();
    reduce(&mut weights);
    weights.iter().map(|&weight| u64::from(weight)).sum()
}

fn reduce(weights: &mut [u32]) {
    let common = weights.iter().fold(0, |all, &weight| gcd(all, weight));
    if common > 1 {
        weights.iter_mut().for_each(|weight| *weight /= common);
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if a == 0 { b } else { gcd(b % a, a) }
}

/// Members of one weight: among them, who went least often is next, so that they go in turn.
struct Group {
    weight: u32,
    members: Vec<u32>,
    next: usize,
    /// How often each of those before `next` went; the others went once less.
    rounds: u32,
}

impl Group {
    /// How often the next one went.
    fn went(&self) -> u32 {
        self.rounds
    }

    fn take(&mut self) -> Slot {
        let slot = Slot { member: self.members[self.next], rank: self.rounds };
        self.next += 1;
        if self.next == self.members.len() {
            self.next = 0;
            self.rounds += 1;
        }
        slot
    }
}

/// There are at most as many groups as numbers whose sum is a period, so that a period of 65,536 has 361.
fn slots(weights: &[u32]) -> Vec<Slot> {
    let mut groups: Vec<Group> = Vec::new();
    for (member, &weight) in weights.iter().enumerate() {
        match groups.iter_mut().find(|group| group.weight == weight) {
            Some(group) => group.members.push(member as u32),
            None => groups.push(Group { weight, members: vec![member as u32], next: 0, rounds: 0 }),
        }
    }
    let period: i64 = weights.iter().map(|&weight| i64::from(weight)).sum();
    let mut all = Vec::with_capacity(period as usize);
    for step in 1..=period {
        let gained = |group: &Group| step * i64::from(group.weight) - period * i64::from(group.went());
        let order = |group: &Group| (gained(group), std::cmp::Reverse(group.members[group.next]));
        if let Some(group) = groups.iter_mut().max_by_key(|group| order(group)) {
            all.push(group.take());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule as it is told, one step after the other.
    fn by_rule(weights: &[i64]) -> Vec<usize> {
        let total: i64 = weights.iter().sum();
        let mut gained = vec![0; weights.len()];
        (0..total)
            .map(|_| {
                gained.iter_mut().zip(weights).for_each(|(gained, weight)| *gained += weight);
                let most = *gained.iter().max().unwrap();
                let next = gained.iter().position(|&gained| gained == most).unwrap();
                gained[next] -= total;
                next
            })
            .collect()
    }

    #[test]
    fn the_order_is_that_of_the_rule() {
        let cases: [&[u32]; 6] =
            [&[5, 1, 1], &[7, 4, 1], &[55, 5, 17, 23], &[1, 1, 2, 2, 3, 2], &[1, 500, 1, 500], &[3, 3, 1]];
        for weights in cases {
            let schedule = Schedule::new(weights).unwrap();
            let found: Vec<usize> = schedule.slots.iter().map(|slot| slot.member as usize).collect();
            let wanted: Vec<i64> = weights.iter().map(|&weight| weight.into()).collect();
            assert_eq!(found, by_rule(&wanted), "{weights:?}");
            for (member, &weight) in weights.iter().enumerate() {
                let ranks: Vec<u32> = schedule
                    .slots
                    .iter()
                    .filter(|slot| slot.member as usize == member)
                    .map(|slot| slot.rank)
                    .collect();
                assert_eq!(ranks, (0..weight).collect::<Vec<u32>>());
            }
        }
    }

    #[test]
    fn equal_weights_need_no_schedule() {
        assert!(Schedule::new(&[1, 1, 1]).is_none());
        assert!(Schedule::new(&[70_000, 70_000]).is_none());
        assert_eq!(period(&[1000, 500]), 3);
        assert_eq!(Schedule::new(&[1000, 500]).unwrap().weights, [2, 1]);
    }

    #[test]
    fn the_longest_period_takes_no_time() {
        let mut weights: Vec<u32> = (1..=361).collect();
        weights.push(65_536 - 361 * 362 / 2);
        assert_eq!(Schedule::new(&weights).unwrap().slots.len(), 65_536);
        assert_eq!(Schedule::new(&[vec![1; 65_534], vec![2]].concat()).unwrap().slots.len(), 65_536);
    }
}
