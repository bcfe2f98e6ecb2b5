//! Counters by day, program, driver and device, and the bounds that keep them small however long a cache is used.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::counters::Totals;

/// The name of what has no row of its own.
pub const OTHERS: &str = "(others)";

/// Rows are kept by day for so many days, then by month for so many days; older ones are summed.
pub const BY_DAY: u32 = 35;
const BY_MONTH: u32 = 400;
/// The programs with rows of their own; fewer if there are too many rows.
const MAX_PROGRAMS: usize = 200;
const MAX_ROWS: usize = 2048;

/// What the counters of a row are of. Unknown fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowTag {
    /// Days since 1970, UTC, for a month that of its first; 0 is not known or long ago.
    pub day: u32,
    /// The name of the program that was running.
    pub program: String,
    /// The driver's family.
    pub driver: String,
    /// The device's name; of several, that of the first.
    pub device: String,
}

/// Counters by tag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows(BTreeMap<RowTag, Totals>);

/// A row in the total.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StoredRow {
    day: u32,
    program: String,
    driver: String,
    device: String,
    counters: BTreeMap<String, u64>,
}

impl Rows {
    /// Adds to the row of a tag.
    pub fn add(&mut self, tag: RowTag, totals: &Totals) {
        self.0.entry(tag).or_default().add(totals);
    }

    pub(super) fn add_all(&mut self, others: &Rows) {
        for (tag, totals) in &others.0 {
            self.add(tag.clone(), totals);
        }
    }

    /// The rows, by tag.
    pub fn iter(&self) -> impl Iterator<Item = (&RowTag, &Totals)> {
        self.0.iter()
    }

    /// The sum of all rows.
    pub fn total(&self) -> Totals {
        self.0.values().fold(Totals::default(), |mut sum, row| {
            sum.add(row);
            sum
        })
    }

    /// The sums of the rows, grouped by a property of their tags.
    pub fn by<K: Ord>(&self, of: impl Fn(&RowTag) -> K) -> BTreeMap<K, Totals> {
        let mut sums: BTreeMap<K, Totals> = BTreeMap::new();
        for (tag, totals) in &self.0 {
            sums.entry(of(tag)).or_default().add(totals);
        }
        sums
    }

    /// The rows with such tags.
    pub fn of(&self, is_such: impl Fn(&RowTag) -> bool) -> Rows {
        let rows = self.0.iter().filter(|(tag, _)| is_such(tag));
        Rows(rows.map(|(tag, row)| (tag.clone(), row.clone())).collect())
    }

    /// Has the hits of each row count as avoided only what the driver's own cache would not have avoided. `own_load_ns` tells how
    /// long that takes for a build; None if there is no such cache, or it is not known.
    pub fn discount(&mut self, own_load_ns: impl Fn(&RowTag) -> Option<u64>) {
        for (tag, row) in &mut self.0 {
            if let Some(own_load_ns) = own_load_ns(tag) {
                row.discount(own_load_ns);
            }
        }
    }

    /// The row of a tag.
    #[cfg(test)]
    pub fn get(&self, tag: &RowTag) -> Option<&Totals> {
        self.0.get(tag)
    }

    /// What was counted before: a row of the same tag has counted at least as much, or that was forgotten.
    pub(super) fn subtract(&mut self, earlier: &Rows) {
        for (tag, totals) in &earlier.0 {
            if let Some(row) = self.0.get_mut(tag) {
                row.subtract(totals);
            }
        }
        self.0.retain(|_, row| !row.is_empty());
    }

    /// Subtracts from both what is in both.
    pub(super) fn cancel(&mut self, earlier: &mut Rows) {
        for (tag, totals) in &mut earlier.0 {
            if let Some(row) = self.0.get_mut(tag) {
                row.cancel(totals);
            }
        }
        for rows in [self, earlier] {
            rows.0.retain(|_, row| !row.is_empty());
        }
    }

    fn retag(&mut self, retag: impl Fn(RowTag) -> RowTag) {
        for (tag, row) in std::mem::take(&mut self.0) {
            self.add(retag(tag), &row);
        }
    }

    pub(super) fn to_written(&self) -> Vec<StoredRow> {
        let written = |(tag, row): (&RowTag, &Totals)| {
            let RowTag {
                day,
                program,
                driver,
                device,
            } = tag.clone();
            StoredRow {
                day,
                program,
                driver,
                device,
                counters: row.to_map(),
            }
        };
        self.0.iter().map(written).collect()
    }

    pub(super) fn from_written(written: Vec<StoredRow>) -> Rows {
        let mut rows = Rows::default();
        for row in written {
            let tag = RowTag {
                day: row.day,
                program: row.program,
                driver: row.driver,
                device: row.device,
            };
            rows.add(tag, &Totals::from_map(&row.counters));
        }
        rows
    }
}

/// Merges rows until they are within their bounds, and the rows to be subtracted from them in the same way.
pub(super) fn bound(rows: &mut Rows, earlier: &mut Rows, today: u32) {
    let aged = |tag: RowTag| RowTag {
        day: aged(tag.day, today),
        ..tag
    };
    rows.retag(aged);
    earlier.retag(aged);
    let mut most = MAX_PROGRAMS;
    loop {
        let mut programs: Vec<(u64, String)> = rows
            .by(|tag| tag.program.clone())
            .into_iter()
            .map(|(name, totals)| (totals.builds(), name))
            .collect();
        programs.sort_unstable_by(|one, other| other.cmp(one));
        let beyond = programs.into_iter().skip(most).map(|(_, name)| name);
        let beyond: BTreeSet<String> = beyond.collect();
        if !beyond.is_empty() {
            let merged = |tag: RowTag| match beyond.contains(&tag.program) {
                true => RowTag {
                    program: OTHERS.to_owned(),
                    ..tag
                },
                false => tag,
            };
            rows.retag(merged);
            earlier.retag(merged);
        }
        if rows.0.len() <= MAX_ROWS || most == 0 {
            break;
        }
        most /= 2;
    }
    // Nobody has so many drivers and devices.
    if rows.0.len() > MAX_ROWS {
        rows.retag(|_| RowTag::default());
        earlier.retag(|_| RowTag::default());
    }
}

/// The day under which a day is counted today. Applying it again gives the same day, so rows do not age faster the more often it is
/// applied.
fn aged(day: u32, today: u32) -> u32 {
    let month = day.saturating_sub(date(day).2 - 1);
    match today.saturating_sub(day) {
        0..=BY_DAY => day,
        _ if today - month <= BY_MONTH => month,
        _ => 0,
    }
}

/// Year, month and day of a day since 1970, in the Gregorian calendar: eras of 400 years that begin with a March, so that the
/// day that is only sometimes there is the last of a year.
pub fn date(day: u32) -> (u32, u32, u32) {
    const ERA: u32 = 146_097;
    let since = day.saturating_add(719_468); // from 0000-03-01
    let of_era = since % ERA;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march = (5 * of_year + 2) / 153;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = since / ERA * 400 + year + u32::from(month < 3);
    (year, month, of_year - (153 * march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::super::counters::Counter;
    use super::*;

    fn hits(amount: u64) -> Totals {
        let mut totals = Totals::default();
        totals.0[Counter::Hits as usize] = amount;
        totals
    }

    fn tag(day: u32, program: &str) -> RowTag {
        RowTag {
            day,
            program: program.into(),
            ..RowTag::default()
        }
    }

    #[test]
    fn days_have_the_dates_of_the_calendar() {
        for (day, expected) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_453, (2025, 12, 31)),
            (20_454, (2026, 1, 1)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(date(day), expected, "{day}");
        }
        let mut before = date(0);
        for day in 1..60_000 {
            let (year, month, this) = date(day);
            let follows = (year, month, this) == (before.0, before.1, before.2 + 1)
                || this == 1 && (year, month) == (before.0, before.1 + 1)
                || (month, this) == (1, 1) && year == before.0 + 1 && before.1 == 12;
            assert!(follows && month <= 12 && this <= 31, "{day}: {before:?}");
            before = (year, month, this);
        }
    }

    #[test]
    fn what_is_old_is_told_apart_by_month_and_then_no_more() {
        let today = 20_778; // 2026-11-21
        let mut rows = Rows::default();
        for age in 0..1000 {
            rows.add(tag(today - age, "app"), &hits(1));
        }
        rows.add(tag(today + 3, "app"), &hits(1)); // a clock that was wrong
        bound(&mut rows, &mut Rows::default(), today);
        assert_eq!(rows.total().get(Counter::Hits), 1001);
        let days: Vec<u32> = rows.iter().map(|(tag, _)| tag.day).collect();
        assert_eq!((days.len(), days[0]), (1 + 12 + 36 + 1, 0));
        assert!(days[1..13].iter().all(|day| date(*day).2 == 1), "{days:?}");
        let before = rows.clone();
        bound(&mut rows, &mut Rows::default(), today);
        assert!(rows == before, "nothing ages sooner");
    }

    #[test]
    fn of_many_programs_those_that_build_most_are_told_apart() {
        let mut rows = Rows::default();
        for number in 0..1000 {
            rows.add(tag(7, &format!("app{number}")), &hits(number));
        }
        let mut earlier = rows.of(|tag| tag.program != "app0");
        bound(&mut rows, &mut earlier, 7);
        assert_eq!(rows.iter().count(), MAX_PROGRAMS + 1);
        assert!(rows.get(&tag(7, "app999")).is_some());
        let others = rows.get(&tag(7, OTHERS)).expect("a row");
        assert_eq!(others.get(Counter::Hits), (0..800).sum::<u64>());
        rows.subtract(&earlier);
        assert!(rows.total().is_empty());
        for day in 0..30 {
            for number in 0..1000 {
                rows.add(tag(day + 1, &format!("app{number}")), &hits(1));
            }
        }
        bound(&mut rows, &mut earlier, 30);
        assert!((1000..=MAX_ROWS).contains(&rows.iter().count()));
        assert_eq!(rows.total().get(Counter::Hits), 30_000);
    }
}
