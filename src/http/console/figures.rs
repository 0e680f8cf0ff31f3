//! Figures and times as people read them. The exact figure or instant always stands behind what is
//! shown.

use std::fmt;
use std::sync::Arc;

use askama::filters::HtmlSafe;

use crate::domain::time::{Millis, Zone};

/// Markup made here, of figures and times alone: nothing in it was written by others.
pub struct Markup(String);

impl fmt::Display for Markup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl HtmlSafe for Markup {}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// With a comma at every third digit.
pub fn full(figure: u64) -> String {
    let digits = figure.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits and how large: `1.23 M`. Up to 9,999 exact.
pub fn short(figure: u64) -> String {
    if figure < 10_000 {
        return full(figure);
    }
    let units = ["k", "M", "G", "T", "P"];
    let (mut value, mut unit) = (figure as f64 / 1e3, 0);
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1e3;
        unit += 1;
    }
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.decimals$}\u{a0}{}", units[unit])
}

/// The figure short, and in full for who wants to know.
pub fn figure(figure: &u64) -> Markup {
    let (figure, shown, exact) = (*figure, short(*figure), full(*figure));
    Markup(match shown == exact {
        true => shown,
        false => format!("<data value=\"{figure}\" title=\"{exact}\">{shown}</data>"),
    })
}

/// Credits, of which figures are millionths.
pub fn credits(millionths: &u64) -> Markup {
    let millionths = *millionths;
    let shown = match millionths {
        0 => "0".into(),
        _ if millionths >= 10_000_000_000 => short(millionths / 1_000_000),
        _ => format!("{}.{:02}", full(millionths / 1_000_000), millionths % 1_000_000 / 10_000),
    };
    Markup(format!("<data value=\"{millionths}\" title=\"{} millionths\">{shown}</data>", full(millionths)))
}

/// A figure of this meter.
pub fn amount(meter: &str, value: &u64) -> Markup {
    if meter == "credits" { credits(value) } else { figure(value) }
}

/// A part of one as a percentage.
pub fn percent(part: &f64) -> String {
    let percent = part * 100.0;
    match percent {
        0.0 => "0\u{a0}%".into(),
        p if p < 0.1 => "<\u{a0}0.1\u{a0}%".into(),
        p if p < 9.95 => format!("{p:.1}\u{a0}%"),
        p => format!("{p:.0}\u{a0}%"),
    }
}

/// `part` of `whole` from 0 to 1.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) }
}

/// A bar of `part` (0 to 1) of the width there is. It says nothing that does not stand beside it.
pub fn bar(part: &f64) -> Markup {
    let width = part.clamp(0.0, 1.0) * 100.0;
    Markup(format!(
        "<svg class=\"bar\" viewBox=\"0 0 100 6\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect class=\"track\" width=\"100\" height=\"6\"/><rect class=\"fill\" width=\"{width:.2}\" height=\"6\"/></svg>"
    ))
}

/// Shows times in one zone, as seen now.
pub struct Clock {
    pub zone: Arc<Zone>,
    pub now: Millis,
}

impl Clock {
    /// An instant: today's without the day, this year's without the year.
    pub fn at(&self, at: &Millis) -> Markup {
        let (local, now) = (Wall::of(&self.zone, *at), Wall::of(&self.zone, self.now));
        let time = &local.time[..5];
        let shown = match (local.date == now.date, local.year == now.year) {
            (true, _) => time.to_owned(),
            (_, true) => format!("{} {}, {time}", local.day, local.month),
            _ => format!("{} {} {}, {time}", local.day, local.month, local.year),
        };
        self.time(at, &local, &shown)
    }

    /// The same with the seconds.
    pub fn exact(&self, at: &Millis) -> Markup {
        let local = Wall::of(&self.zone, *at);
        let shown = format!("{} {} {}, {}", local.day, local.month, local.year, local.time);
        self.time(at, &local, &shown)
    }

    /// How long until then, or since.
    pub fn away(&self, at: &Millis) -> Markup {
        let ms = at.0 - self.now.0;
        let span = span(ms.abs());
        let shown = if ms >= 0 { format!("in {span}") } else { format!("{span} ago") };
        self.time(at, &Wall::of(&self.zone, *at), &shown)
    }

    /// Hours and minutes, for axes.
    pub fn hour(&self, at: Millis) -> String {
        Wall::of(&self.zone, at).time[..5].to_owned()
    }

    /// The local date, as fields of forms want it.
    pub fn date(&self, at: Millis) -> String {
        Wall::of(&self.zone, at).date
    }

    fn time(&self, at: &Millis, local: &Wall, shown: &str) -> Markup {
        let zone = self.zone.name();
        let title = format!("{} {} {}, {} {zone}", local.day, local.month, local.year, local.time);
        Markup(format!("<time datetime=\"{at}\" title=\"{title}\">{shown}</time>"))
    }
}

/// What a wall clock and a calendar show.
struct Wall {
    date: String,
    year: String,
    month: &'static str,
    day: String,
    time: String,
}

impl Wall {
    fn of(zone: &Zone, at: Millis) -> Self {
        // `2026-11-30T14:59:59.999Z`, of which all is ASCII.
        let text = zone.wall_clock(at).to_string();
        let month: usize = text[5..7].parse().unwrap_or(1);
        Self {
            date: text[..10].into(),
            year: text[..4].into(),
            month: MONTHS.get(month.wrapping_sub(1)).copied().unwrap_or_default(),
            day: text[8..10].trim_start_matches('0').into(),
            time: text[11..19].into(),
        }
    }
}

/// A length of time in its two largest units.
pub fn span(ms: i64) -> String {
    match ms {
        ms if ms < 1000 => format!("{ms}\u{a0}ms"),
        ms if ms < MINUTE_MS => format!("{}\u{a0}s", ms / 1000),
        ms if ms < HOUR_MS => format!("{}\u{a0}min", ms / MINUTE_MS),
        ms if ms < DAY_MS => two(ms / HOUR_MS, "h", ms % HOUR_MS / MINUTE_MS, "min"),
        ms => two(ms / DAY_MS, if ms < 2 * DAY_MS { "day" } else { "days" }, ms % DAY_MS / HOUR_MS, "h"),
    }
}

fn two(first: i64, unit: &str, second: i64, smaller: &str) -> String {
    match second {
        0 => format!("{first}\u{a0}{unit}"),
        _ => format!("{first}\u{a0}{unit} {second}\u{a0}{smaller}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_the_full_one_stands_behind() {
        let shown = |n: u64| short(n).replace('\u{a0}', " ");
        assert_eq!(full(1_234_567), "1,234,567");
        assert_eq!(
            (shown(9_999), shown(10_000), shown(12_345)),
            ("9,999".into(), "10.0 k".into(), "12.3 k".into())
        );
        assert_eq!((shown(999_499), shown(999_500)), ("999 k".into(), "1.00 M".into()));
        assert_eq!((shown(1_234_567), shown((1 << 53) - 1)), ("1.23 M".into(), "9.01 P".into()));
        assert_eq!(figure(&7).to_string(), "7");
        assert!(figure(&1_234_567).to_string().contains("title=\"1,234,567\""));
        assert!(credits(&1_234_567).to_string().ends_with(">1.23</data>"));
    }

    #[test]
    fn parts_are_percentages() {
        let shown = |part: f64| percent(&part).replace('\u{a0}', " ");
        assert_eq!(
            [shown(0.0), shown(0.0004), shown(0.0123), shown(0.5), shown(1.2)],
            ["0 %", "< 0.1 %", "1.2 %", "50 %", "120 %"]
        );
        assert!(
            bar(&f64::NAN).to_string().contains("rect") && bar(&2.0).to_string().contains("width=\"100.00\"")
        );
    }

    #[test]
    fn times_are_those_of_the_zone() {
        let at = |text: &str| Millis::parse(text).unwrap();
        let clock = Clock { zone: Zone::parse("Asia/Tokyo").unwrap(), now: at("2026-11-30T12:00:00Z") };
        assert!(clock.at(&at("2026-11-30T00:05:00Z")).to_string().ends_with(">09:05</time>"));
        assert!(clock.at(&at("2026-11-30T15:00:00Z")).to_string().ends_with(">1 Dec, 00:00</time>"));
        assert!(clock.at(&at("2026-12-31T15:00:00Z")).to_string().ends_with(">1 Jan 2027, 00:00</time>"));
        assert!(
            clock.away(&at("2026-12-02T15:30:00Z")).to_string().ends_with(">in 2\u{a0}days 3\u{a0}h</time>")
        );
        assert!(clock.away(&at("2026-11-30T11:59:30Z")).to_string().contains(">30\u{a0}s ago<"));
    }
}
