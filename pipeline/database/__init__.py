"""PostgreSQL: engines, roles, tenants, migrations, bulk copy."""
