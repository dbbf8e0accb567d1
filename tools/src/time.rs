//! Times as people type and read them: RFC 3339 in UTC, `@` milliseconds, or "that long ago".

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> i64 {
    (now_ns() / 1_000_000) as i64
}

/// Nanoseconds since the Unix epoch; ends in the year 2554.
pub(crate) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// `2026-11-29T15:16:17.250Z` from milliseconds since the Unix epoch.
pub(crate) fn render_ms(ms: i64) -> String {
    let (days, in_day) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    let (year, month, day) = civil_from_days(days);
    let (second, milli) = (in_day / 1000, in_day % 1000);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{milli:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Milliseconds since the Unix epoch of `2026-11-29T15:16:17Z`, `2026-11-29 15:16`, `2026-11-29`, `@1764429377000`, or
/// `5m` / `-5m` (five minutes before `now_ms`; units ms, s, m, h, d).
pub(crate) fn parse(text: &str, now_ms: i64) -> Option<i64> {
    if let Some(ms) = text.strip_prefix('@') {
        return ms.parse().ok();
    }
    if let Some(ago) = parse_duration_ms(text.strip_prefix('-').unwrap_or(text)) {
        return now_ms.checked_sub(ago);
    }
    parse_rfc3339(text)
}

/// Milliseconds of `250ms`, `10s`, `5m`, `2h`, `7d`.
pub(crate) fn parse_duration_ms(text: &str) -> Option<i64> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.parse::<i64>().ok()?.checked_mul(factor)
}

fn parse_rfc3339(text: &str) -> Option<i64> {
    let (date, time) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, "00:00"),
    };
    let mut parts = date.splitn(3, '-').map(digits);
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || !(1970..=9999).contains(&year) {
        return None;
    }
    let days = days_from_civil(year, month, day);
    if civil_from_days(days) != (year, month, day) {
        return None; // such as February 30th
    }
    let (time, zone_minutes) = split_zone(time)?;
    let mut parts = time.splitn(3, ':');
    let (hour, minute) = (digits(parts.next()?)?, digits(parts.next()?)?);
    let (second, milli) = match parts.next() {
        Some(seconds) => match seconds.split_once('.') {
            Some((s, fraction)) => (digits(s)?, digits(format!("{fraction}000").get(..3)?)?),
            None => (digits(seconds)?, 0),
        },
        None => (0, 0),
    };
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let minutes = days * 1440 + hour * 60 + minute - zone_minutes;
    Some((minutes * 60 + second) * 1000 + milli)
}

/// The time of day, and how many minutes its zone is ahead of UTC; none given: UTC.
fn split_zone(time: &str) -> Option<(&str, i64)> {
    if let Some(time) = time.strip_suffix(['Z', 'z']) {
        return Some((time, 0));
    }
    let Some(at) = time.rfind(['+', '-']) else { return Some((time, 0)) };
    let (hours, minutes) = time[at + 1..].split_once(':')?;
    let ahead = digits(hours)? * 60 + digits(minutes)?;
    Some((&time[..at], if time[at..].starts_with('-') { -ahead } else { ahead }))
}

fn digits(text: &str) -> Option<i64> {
    (!text.is_empty() && text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

/// Days since 1970-01-01 of a date of the Gregorian calendar; years are counted from March, so that the leap day is the
/// last of its year.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_time_is_understood() {
        let cases = [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2026-11-29T15:16:17Z", Some(1_795_965_377_000)),
            ("2026-11-29T15:16:17.25Z", Some(1_795_965_377_250)),
            ("2026-11-29 15:16", Some(1_795_965_360_000)),
            ("2026-11-29T16:16:17+01:00", Some(1_795_965_377_000)),
            ("2026-11-29", Some(1_795_910_400_000)),
            ("2024-02-29", Some(1_709_164_800_000)),
            ("2026-02-29", None),
            ("2026-13-01", None),
            ("@1764429377000", Some(1_764_429_377_000)),
            ("5m", Some(1_000_000_000 - 300_000)),
            ("-2h", Some(1_000_000_000 - 7_200_000)),
            ("5 apples", None),
            ("", None),
            ("2026-1\u{e9}", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse(text, 1_000_000_000), want, "{text}");
        }
    }

    #[test]
    fn rendering_and_parsing_are_inverse() {
        for ms in [0, 951_782_400_000, 1_709_164_799_999, 1_795_965_377_250, 4_102_444_800_000] {
            assert_eq!(parse(&render_ms(ms), 0), Some(ms), "{}", render_ms(ms));
        }
    }
}
