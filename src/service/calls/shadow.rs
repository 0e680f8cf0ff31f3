//! Who is decided without being refused: a whole tenant, or a share of its
//! users.

use crate::domain::ids::{TenantId, UserId};
use crate::domain::quantity::MAX_TOKENS_PER_CALL;
use crate::domain::taking::Taking;
use crate::service::tenancy::settings::{Enforcement, Settings};

impl Settings {
    /// How what this user asks for is taken.
    pub(super) fn taking(&self, tenant: &TenantId, user: &UserId) -> Taking {
        let is_shadowed = self.enforcement == Enforcement::Shadow
            || (self.shadow_percent > 0 && place_of_hundred(tenant, user) < self.shadow_percent);
        if is_shadowed { Taking::Shadowed } else { Taking::Enforced }
    }
}

/// The user's place in 0..100. It depends on nothing but the two ids, so that
/// a user stays on one side and a larger share only adds users.
fn place_of_hundred(tenant: &TenantId, user: &UserId) -> u8 {
    let mut hasher = blake3::Hasher::new_derive_key("apportion share of users in shadow");
    // No tenant's id has this byte: the two ids cannot run into each other.
    for part in [tenant.as_str().as_bytes(), &[0], user.as_str().as_bytes()] {
        hasher.update(part);
    }
    let hash = hasher.finalize();
    let number = u64::from_be_bytes(std::array::from_fn(|index| hash.as_bytes()[index]));
    (number % 100) as u8
}

/// What is reserved of a figure beyond every cap. Nobody can settle more, and
/// every cell counts so much exactly.
pub(super) fn believable(tokens: u64) -> u64 {
    tokens.min(MAX_TOKENS_PER_CALL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::time::Zone;

    fn shadowed(tenant: &str, percent: u8) -> Vec<bool> {
        let tenant = TenantId::parse(tenant).unwrap();
        let settings = Settings { shadow_percent: percent, ..Settings::new(Zone::utc(), None) };
        let is_shadowed = |n: u32| {
            let user = UserId::parse(&format!("user-{n}")).unwrap();
            settings.taking(&tenant, &user) == Taking::Shadowed
        };
        (0..10_000).map(is_shadowed).collect()
    }

    #[test]
    fn a_share_is_about_as_large_as_it_says_and_only_grows() {
        let mut before = shadowed("acme", 0);
        assert!(before.iter().all(|shadowed| !shadowed));
        for percent in 1..=100 {
            let now = shadowed("acme", percent);
            assert!(before.iter().zip(&now).all(|(before, now)| !before || *now), "{percent} %");
            let count = now.iter().filter(|shadowed| **shadowed).count() as i64;
            assert!((count - i64::from(percent) * 100).abs() < 200, "{count} of 10,000 at {percent} %");
            before = now;
        }
        assert!(before.iter().all(|shadowed| *shadowed));
    }

    #[test]
    fn every_tenant_draws_its_own_users() {
        assert_ne!(shadowed("acme", 50), shadowed("acme-2", 50));
        assert_eq!(shadowed("acme", 50), shadowed("acme", 50));
    }

    #[test]
    fn a_tenant_in_shadow_enforces_for_nobody() {
        let settings = Settings { enforcement: Enforcement::Shadow, ..Settings::new(Zone::utc(), None) };
        let (tenant, user) = (TenantId::parse("t").unwrap(), UserId::parse("u").unwrap());
        assert_eq!(settings.taking(&tenant, &user), Taking::Shadowed);
    }
}
